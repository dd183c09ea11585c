"""An MCP server that misbehaves in the way its first argument says."""

import json
import os
import sys
import time

MODE = sys.argv[1]
TOOL = {"name": "echo", "description": "Says it again", "inputSchema": {"type": "object", "properties": {"z": {}, "a": {}}}}


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(request, result):
    send({"id": request["id"], "result": result})


def initialize(request):
    if MODE == "silent":
        time.sleep(1000)
    if MODE == "stubborn":
        send({"id": request["id"], "error": {"code": -32000, "message": "no key"}})
        return
    answer(request, {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": MODE, "version": "1.0"},
        "instructions": "be kind",
    })


def tools(request):
    cursor = (request.get("params") or {}).get("cursor")
    if MODE == "pages":
        page = int(cursor or 1)
        result = {"tools": [{**TOOL, "name": f"tool_{page}_{n}"} for n in range(2)]}
        if page < 3:
            result["nextCursor"] = str(page + 1)
        answer(request, result)
    elif MODE == "endless":
        answer(request, {"tools": [TOOL], "nextCursor": "again"})
    elif MODE == "liar":
        answer(request, {"tools": [{**TOOL, "inputSchema": "none"}], "nextCursor": 7})
    elif MODE == "listless":
        answer(request, {"result": "no tools here"})
    else:
        answer(request, {"tools": [TOOL]})


def call(request):
    arguments = request["params"].get("arguments")
    if MODE == "mute":
        return
    if MODE == "dies":
        sys.stderr.write("Traceback\nValueError: boom\n")
        sys.stderr.flush()
        os._exit(7)
    if MODE == "floods":
        while True:
            sys.stdout.write("x" * 4096)
    if MODE == "hog":
        global kept
        kept = b"x" * (300 << 20)
        time.sleep(1000)
    if MODE == "roots":
        send({"id": 99, "method": "roots/list"})
        roots = json.loads(sys.stdin.readline())["result"]["roots"]
        answer(request, {"content": [{"type": "text", "text": roots[0]["uri"]}]})
        return
    if request["params"]["name"] != "echo":
        send({"id": request["id"], "error": {"code": -32602, "message": "Unknown tool: " + request["params"]["name"]}})
        return
    content = [{"type": "text", "text": json.dumps(arguments)}, {"type": "novel", "own": {"z": 1, "a": 2}}]
    answer(request, {"isError": MODE == "fails", "content": content, "structuredContent": {"z": arguments, "a": 1}})


if MODE == "early":
    sys.stderr.write("usage: server --key KEY\n")
    sys.exit(2)
if MODE == "junk":
    print("Starting up…\n\n[INFO] ready\n{not json\n42\n[]")
    sys.stderr.write("noise\n" * 100_000)
if MODE == "daemon":
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)

for line in sys.stdin:
    request = json.loads(line)
    handler = {"initialize": initialize, "tools/list": tools, "tools/call": call}.get(request.get("method"))
    if handler:
        handler(request)
    if MODE == "junk":
        print("done with", request.get("method"))
if MODE == "daemon":
    time.sleep(1000)
