"""Lists the tools of the servers that standard input names, with the client of the Python SDK.

Input is one JSON object: `at_once`, and `servers`, each with `name`, `command`, `args`, `env` and `cwd`.
Output is one: `seconds` from the first start to the last end, without the time to load the SDK, and
`tools`, their number by server, or why there is none.
"""

import asyncio
import json
import os
import sys
import time

from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client

# What mcpmill gives a server as well, from its start to its list.
SECONDS = 90


async def tools_of(server, complaints):
    parameters = StdioServerParameters(**{key: server[key] for key in ("command", "args", "env", "cwd")})
    async with stdio_client(parameters, errlog=complaints) as (reading, writing):
        async def roots(_):
            return types.ListRootsResult(roots=[types.Root(uri="file://" + server["cwd"])])

        async with ClientSession(reading, writing, list_roots_callback=roots) as session:
            await session.initialize()
            tools, cursor = [], None
            while True:
                page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor) if cursor else None)
                tools += page.tools
                cursor = page.next_cursor
                if not cursor:
                    return tools


async def visit(server, turns, complaints):
    async with turns:
        try:
            tools = await asyncio.wait_for(tools_of(server, complaints), SECONDS)
            return server["name"], len(tools)
        except Exception as error:
            return server["name"], repr(error)


async def main():
    task = json.load(sys.stdin)
    turns = asyncio.Semaphore(task["at_once"])
    with open(os.devnull, "w") as complaints:
        started = time.monotonic()
        visits = await asyncio.gather(*(visit(server, turns, complaints) for server in task["servers"]))
        seconds = time.monotonic() - started
    print(json.dumps({"seconds": seconds, "tools": dict(visits)}))


asyncio.run(main())
