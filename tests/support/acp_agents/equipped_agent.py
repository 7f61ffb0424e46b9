"""Says, as JSON, what it was given: its MCP servers, its variables, and the files of its HOME and workspace.

With ``renew`` as argument it writes a new token into its login file and says the token, as an agent does that
renews its login.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from agentkit import SESSION, answer, end, expect, initialized, prompt, say


def texts(root: Path) -> dict[str, str]:
    found = [path for path in root.rglob("*") if path.is_file() and path.stat().st_size < 10_000]
    return {str(path.relative_to(root)): path.read_text(errors="replace") for path in sorted(found)}


answer(expect("initialize"), initialized({"mcpCapabilities": {"http": True}}))
opened = expect("session/new")
answer(opened, {"sessionId": SESSION})
home = Path(os.environ["HOME"])
while True:
    request = prompt()
    told = {
        "servers": opened["params"]["mcpServers"],
        "env": dict(os.environ),
        "argv": sys.argv[1:],
        "home": texts(home),
        "workspace": texts(Path.cwd()),
    }
    if "renew" in sys.argv:
        login = home / ".codex" / "auth.json"
        login.write_text(json.dumps({"tokens": {"access_token": "renewed-token-7654321"}}))
        Path("copied.txt").write_text(login.read_text())
    say(json.dumps(told))
    end(request)
