"""An MCP server that misbehaves in the way its first argument says; the second is how often it was started."""

import json
import os
import signal
import sys
import time

MODE, START = sys.argv[1], int(sys.argv[2])
OUT = sys.stdout.buffer


def write(data):
    try:
        OUT.write(data if isinstance(data, bytes) else data.encode())
        OUT.flush()
    except BrokenPipeError:
        os._exit(0)


def send(message):
    write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")


def answer(request, result):
    send({"id": request["id"], "result": result})


def tool(name, schema=None):
    return {"name": name, "description": "d", "inputSchema": schema or {"type": "object"}}


def raw_answer(request, tools):
    write('{"jsonrpc":"2.0","id":%s,"result":{"tools":[' % json.dumps(request["id"]))
    write(tools)
    write("]}}\n")


def drip(text):
    for letter in text:
        write(letter)
        time.sleep(1)


def page(request, cursor):
    """Lists in pages."""
    n = int(cursor or 0)
    if MODE == "many-tools":
        # The last page is empty, as some servers end.
        tools = [tool(f"tool_{n}_{i}") for i in range(100)] if n < 120 else []
        return {"tools": tools, **({"nextCursor": str(n + 1)} if n < 120 else {})}
    if MODE == "huge-page":
        return {"tools": [tool(f"tool_{i}") for i in range(12_000)]}
    if MODE == "stuck-cursor":
        return {"tools": [tool("a"), tool("b")], "nextCursor": "1"}
    if MODE == "cycling-cursors":
        return {"tools": [tool(f"t{time.monotonic_ns()}")], "nextCursor": str((n + 1) % 3)}
    if MODE == "empty-pages":
        return {"tools": [tool("a")] if n == 0 else [], "nextCursor": str(n + 1)}
    if MODE == "sparse-pages":
        # Pages of which a filter left nothing.
        return {"tools": [tool(f"tool_{n}")] if n in (0, 4, 8) else [], **({"nextCursor": n + 1} if n < 8 else {})}
    if MODE == "endless-pages":
        return {"tools": [tool(f"tool_{n}")], "nextCursor": str(n + 1)}
    return None


def odd_lists(request):
    if MODE == "deep":
        raw_answer(request, '{"name":"deep","inputSchema":%s{}%s}' % ('{"items":' * 300, "}" * 300))
    elif MODE == "refers":
        itself = {"type": "object", "properties": {"child": {"$ref": "#"}}}
        elsewhere = {"type": "object", "properties": {"a": {"$ref": os.environ["ELSEWHERE"]}}}
        answer(request, {"tools": [tool("itself", itself), tool("elsewhere", elsewhere)]})
    elif MODE == "broken-text":
        raw_answer(request, b'{"name":"bytes","description":"\xff\xfe","inputSchema":{}},'
                   b'{"name":"surrogate","description":"a\\ud800b","inputSchema":{}}')
    elif MODE == "odd-numbers":
        odd = ["1e400", "NaN", "9" * 401, "18446744073709551617"]
        listed = ['{"name":"odd_%d","inputSchema":{"maximum":%s}}' % (n, number) for n, number in enumerate(odd)]
        raw_answer(request, ",".join(listed + [json.dumps(tool("a"))]))
    elif MODE == "says-before":
        write("\x1b[32mINFO\x1b[0m answers: ")
        send({"id": request["id"], "error": None, "result": {"tools": [tool("a")]}})
    elif MODE == "no-last-end":
        write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": {"tools": [tool("a")]}}))
        os._exit(0)
    elif MODE == "batch":
        log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
        write(json.dumps([log, {"jsonrpc": "2.0", "id": request["id"], "result": {"tools": [tool("a")]}}]) + "\n")
    elif MODE == "other-ids":
        send({"id": request["id"] + 1000, "result": {"tools": [tool("wrong")]}})
        send({"id": None, "result": {"tools": [tool("wrong")]}})
        send({"id": "x", "error": {"code": 1, "message": "wrong"}})
    elif MODE == "text-ids":
        send({"id": str(request["id"]), "result": {"tools": [tool("a")]}})
    elif MODE == "answers-twice":
        two = [{"jsonrpc": "2.0", "id": request["id"], "result": {"tools": [tool(name)]}} for name in ("first", "second")]
        write("".join(json.dumps(one) + "\n" for one in two))
    else:
        return False
    return True


def floods(request):
    if MODE == "long-line":
        write('{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"' % json.dumps(request["id"]))
        for _ in range(100):
            write(b"x" * (1 << 20))
        write('"}]}}\n')
    elif MODE == "many-lines":
        for _ in range(100):
            write((b"x" * 1023 + b"\n") * 1024)
    elif MODE == "many-values":
        raw_answer(request, "0," * 4_000_000 + "0")
    elif MODE == "nags":
        while True:
            write('{"jsonrpc":"2.0","id":1,"method":"roots/list"}\n' * 1000)
    elif MODE == "complains":
        for _ in range(64):
            sys.stderr.write("x" * (1 << 20))
        answer(request, {"tools": [tool("a")]})
    else:
        return False
    return True


def ends(request):
    if MODE == "half-a-line":
        write('{"jsonrpc":"2.0","id":%s,"result":{"tools":[' % json.dumps(request["id"]))
        os._exit(3)
    elif MODE == "closes-output":
        os.close(1)
        time.sleep(1000)
    elif MODE == "drips":
        drip('{"jsonrpc":"2.0","id":%s,"result":{"tools":[]}}' % json.dumps(request["id"]))
    elif MODE == "dies-once" and START == 1:
        sys.stderr.write("out of luck\n")
        os._exit(9)
    elif MODE == "dies-always":
        os._exit(9)
    elif MODE == "fork-storm":
        while True:
            try:
                os.fork()
            except OSError:
                time.sleep(0.01)
    else:
        return False
    return True


def tools(request):
    listed = page(request, (request.get("params") or {}).get("cursor"))
    if listed:
        answer(request, listed)
    elif not (odd_lists(request) or floods(request) or ends(request)):
        answer(request, {"tools": [tool("a")]})


def initialize(request):
    info = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": MODE, "version": "1"}}
    if MODE == "silent":
        time.sleep(1000)
    elif MODE == "drips-at-once":
        drip(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": info}))
    else:
        answer(request, info)


if MODE in ("stays", "deaf-family"):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
if MODE == "deaf-family":
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)

for line in sys.stdin:
    request = json.loads(line)
    handler = {"initialize": initialize, "tools/list": tools}.get(request.get("method"))
    if handler:
        handler(request)
if MODE in ("stays", "deaf-family"):
    while True:
        time.sleep(1)
