"""A server of the Model Context Protocol on stdio with one tool, which adds, and says a variable."""

import json
import os
import sys

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
}


def result(method: str, params: dict) -> dict:
    if method == "initialize":
        about = {"name": "adder", "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [{"name": "add_numbers", "description": "Adds two numbers.", "inputSchema": SCHEMA}]}
    if method == "tools/call":
        numbers = params["arguments"]
        total = round(numbers["a"] + numbers["b"])
        return {"content": [{"type": "text", "text": f"sum={total} word={os.environ['ADDER_WORD']}"}]}
    raise LookupError(method)


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    answer = {"jsonrpc": "2.0", "id": request["id"]}
    try:
        answer["result"] = result(request["method"], request.get("params", {}))
    except LookupError:
        answer["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(answer), flush=True)
