"""An MCP server that misbehaves in the way its first argument says."""

import json
import os
import signal
import sys
import time

MODE = sys.argv[1]
SECRET = "planted-value-0123456789"
TOOL = {"name": "echo", "description": "Says it again", "inputSchema": {"type": "object", "properties": {"z": {}, "a": {}}}}


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(request, result):
    send({"id": request["id"], "result": result})


def begins_at(place):
    """A text that is cut within the secret when it is cut a little behind this place."""
    return "x" * place + SECRET


def initialize(request):
    if MODE == "blurts-error":
        send({"id": request["id"], "error": {"code": -32000, "message": begins_at(990)}})
        return
    if MODE == "silent":
        time.sleep(1000)
    if MODE == "stubborn":
        send({"id": request["id"], "error": {"code": -32000, "message": "no key"}})
        return
    if MODE == "modern":
        send({"id": request["id"], "error": {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}}})
        return
    answer(request, {
        "protocolVersion": {"future": "2099-01-01", "blurts-version": begins_at(30)}.get(MODE, "2025-06-18"),
        "capabilities": {"tools": {}},
        "serverInfo": {
            "name": begins_at(290) if MODE == "blurts" else MODE * (100_000 if MODE == "boasts" else 1), "version": "1.0"},
        "instructions": begins_at(99_990) if MODE == "blurts" else "be kind" * (1_000_000 if MODE == "boasts" else 1),
    })


def tools(request):
    cursor = (request.get("params") or {}).get("cursor")
    if MODE == "pages":
        page = int(cursor or 1)
        result = {"tools": [{**TOOL, "name": f"tool_{page}_{n}"} for n in range(2)]}
        if page < 3:
            result["nextCursor"] = str(page + 1)
        answer(request, result)
    elif MODE == "dawdles":
        time.sleep(0.3)
        answer(request, {"tools": [{**TOOL, "name": f"tool_{cursor}"}], "nextCursor": str(int(cursor or 0) + 1)})
    elif MODE == "endless":
        answer(request, {"tools": [TOOL], "nextCursor": "again"})
    elif MODE == "liar" and cursor == 7:
        answer(request, {"tools": [{**TOOL, "name": "after 7"}], "nextCursor": {"page": 8}})
    elif MODE == "liar":
        answer(request, {"tools": [{**TOOL, "inputSchema": "none"}], "nextCursor": 7})
    elif MODE == "noise":
        print("✅ ready\n\n\ufeff")
        print(json.dumps({"level": "info"}))
        print("".join(f"{n}%\r" for n in range(50_000)))
        sys.stdout.flush()
        tool = json.dumps({**TOOL, "description": "E\ud800Z"})
        text = '{"jsonrpc":"2.0","id":%s,"result":{"tools":[%s]}}\n' % (json.dumps(request["id"]), tool)
        raw = text.encode().replace(b"E", "é".encode(), 1).replace(b"Z", b"\xff")
        middle = raw.index("é".encode()) + 1
        sys.stdout.buffer.write(raw[:middle])
        sys.stdout.flush()
        time.sleep(0.2)
        sys.stdout.buffer.write(raw[middle:])
        sys.stdout.flush()
    elif MODE == "deep":
        def deep(levels):
            schema = '{"items":' * levels + "{}" + "}" * levels
            return '{"name":"deep_%d","inputSchema":%s}' % (levels, schema)
        listed = ",".join([deep(300), deep(100_000), deep(500), json.dumps(TOOL)])
        print('{"jsonrpc":"2.0","id":%s,"result":{"tools":[%s]}}' % (json.dumps(request["id"]), listed), flush=True)
    elif MODE == "trickle":
        while True:
            sys.stdout.write("x")
            sys.stdout.flush()
            time.sleep(0.3)
    elif MODE == "halfway":
        sys.stdout.write('{"jsonrpc":"2.0","id":')
        sys.stdout.flush()
        os._exit(3)
    elif MODE == "blurts":
        answer(request, {"tools": [{"name": begins_at(70), "inputSchema": 7}, {**TOOL, "description": SECRET}]})
    elif MODE == "listless":
        answer(request, {"result": "no tools here"})
    else:
        answer(request, {"tools": [TOOL]})


def discover(request):
    if MODE in ("modern", "both"):
        answer(request, {
            "resultType": "complete", "capabilities": {"tools": {}},
            "supportedVersions": ["2026-07-28", "2025-06-18", "2026-07-28"] if MODE == "both" else ["2026-07-28"],
            "ttlMs": 0, "cacheScope": "private",
        })


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
    if MODE == "asks":
        form = {"message": "m", "requestedSchema": {"type": "object", "properties": {"a": {"type": "string", "default": "x"}}}}
        say = {"role": "user", "content": {"type": "text", "text": "x"}}
        asked = [("ping", None), ("elicitation/create", form), ("sampling/createMessage", {"messages": [say], "maxTokens": 1}),
                 ("no/such", {})]
        told = []
        for number, (method, params) in enumerate(asked):
            send({"id": number, "method": method, **({"params": params} if params is not None else {})})
            reply = json.loads(sys.stdin.readline())
            told.append([reply["id"], reply.get("result"), reply.get("error", {}).get("code")])
        answer(request, {"content": [{"type": "text", "text": json.dumps(told)}]})
        return
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
if MODE == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        time.sleep(1000)
if MODE == "daemon":
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)

for line in sys.stdin:
    request = json.loads(line)
    handler = {"initialize": initialize, "server/discover": discover, "tools/list": tools, "tools/call": call}.get(request.get("method"))
    if handler:
        handler(request)
    if MODE == "junk":
        print("done with", request.get("method"))
if MODE in ("daemon", "deaf"):
    time.sleep(1000)
