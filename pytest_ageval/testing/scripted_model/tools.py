"""Turning `Shell` and `Write` into a call of the tool that the agent at hand offers."""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_ageval.testing.scripted_model.request import Request, Tool
from pytest_ageval.testing.scripted_model.turns import Call, Shell, Write

# In order of preference. The names are those of coding agents in use.
_SHELL_TOOLS = (
    "exec_command",
    "shell_command",
    "shell",
    "local_shell",
    "Bash",
    "bash",
    "run_shell_command",
    "terminal",
    "execute_bash",
    "execute_command",
    "run_command",
    "execute",
)
_WRITE_TOOLS = (
    "Write",
    "write",
    "write_file",
    "create_file",
    "file_editor",
    "str_replace_editor",
    "text_editor",
    "apply_patch",
)
_SHELL_HINTS = ("shell", "bash", "exec", "terminal", "command", "run")
_WRITE_HINTS = ("write", "create", "edit")
_COMMAND_KEYS = ("command", "cmd", "script")
_PATH_KEYS = ("file_path", "filePath", "path")
_CONTENT_KEYS = ("content", "contents", "file_text")
_PATCH_KEYS = ("input", "patch", "patchText")


class ScriptError(AssertionError):
    """The script cannot be carried out: no tool on offer fits, or the script itself failed."""


@dataclass(frozen=True, slots=True)
class WireCall:
    """A call as it goes onto the wire. `arguments` is the text: JSON, or a freeform input."""

    id: str
    name: str
    kind: str
    arguments: str
    namespace: str | None = None

    @property
    def object(self) -> Any:
        """The arguments parsed, or None if they are not JSON."""
        try:
            return json.loads(self.arguments)
        except ValueError:
            return None


def resolve(call: Call, request: Request, call_id: str) -> WireCall:
    """The call that does what `call` says with the tools of `request`. Raises `ScriptError`."""
    if isinstance(call, Shell):
        return _shell(call, request, call_id)
    if isinstance(call, Write):
        return _write(call, request, call_id)
    offered = request.offered.get(call.name, Tool(call.name, "function", {}))
    return _wire(offered, call.arguments, call_id)


def _wire(tool: Tool, arguments: Mapping[str, Any] | str, call_id: str) -> WireCall:
    text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments))
    return WireCall(call_id, tool.name, tool.kind, text, tool.namespace)


def _shell(call: Shell, request: Request, call_id: str) -> WireCall:
    tool = _pick(request, _SHELL_TOOLS, (_COMMAND_KEYS,), _SHELL_HINTS)
    if tool is None:
        raise ScriptError(f"no tool that runs a command among {request.tools}")
    if tool.kind != "function":
        return _wire(tool, call.command, call_id)
    values: dict[str, Any] = {}
    for key in _COMMAND_KEYS:
        values[key] = ["bash", "-lc", call.command] if _is_list(tool, key) else call.command
    if call.workdir is not None:
        values.update(workdir=call.workdir, cwd=call.workdir, dir_path=call.workdir)
    return _wire(tool, _fill(tool.schema, values), call_id)


def _write(call: Write, request: Request, call_id: str) -> WireCall:
    tool = _pick(request, _WRITE_TOOLS, (_PATH_KEYS, _CONTENT_KEYS), _WRITE_HINTS)
    if tool is None:
        quoted = shlex.quote(call.path)
        parent = shlex.quote(posixpath.dirname(call.path) or ".")
        command = f"mkdir -p {parent} && printf %s {shlex.quote(call.content)} > {quoted}"
        return _shell(Shell(command), request, call_id)
    if tool.name == "apply_patch":
        patch = _patch(call, request.cwd)
        if tool.kind != "function":
            return _wire(tool, patch, call_id)
        return _wire(tool, _fill(tool.schema, dict.fromkeys(_PATCH_KEYS, patch)), call_id)
    path = posixpath.join(request.cwd or "", call.path)
    values: dict[str, Any] = dict.fromkeys(_PATH_KEYS, path)
    values.update(dict.fromkeys(_CONTENT_KEYS, call.content), command="create")
    return _wire(tool, _fill(tool.schema, values), call_id)


def _patch(call: Write, cwd: str | None) -> str:
    path = call.path
    if cwd is not None and path.startswith(cwd.rstrip("/") + "/"):
        path = posixpath.relpath(path, cwd)  # patch tools want paths below their directory
    lines = "\n".join(f"+{line}" for line in call.content.removesuffix("\n").split("\n"))
    return f"*** Begin Patch\n*** Add File: {path}\n{lines}\n*** End Patch"


def _pick(
    request: Request,
    names: tuple[str, ...],
    needs: tuple[tuple[str, ...], ...],
    hints: tuple[str, ...],
) -> Tool | None:
    """A tool of a known name, else one whose name and schema suggest that it will do."""
    for name in names:
        tool = request.offered.get(name)
        if tool is not None and tool.kind in ("function", "custom", "local_shell"):
            return tool
    for tool in request.offered.values():
        properties = tool.schema.get("properties") or {}
        named = any(hint in tool.name.lower() for hint in hints)
        fits = all(any(key in properties for key in keys) for keys in needs)
        if tool.kind == "function" and named and fits:
            return tool
    return None


def _property(tool: Tool, key: str) -> Mapping[str, Any]:
    found = (tool.schema.get("properties") or {}).get(key)
    return found if isinstance(found, Mapping) else {}


def _is_list(tool: Tool, key: str) -> bool:
    return _type(_property(tool, key)) == "array"


def _type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if kind is None:
        inner = [row for row in schema.get("anyOf") or [] if isinstance(row, Mapping)]
        return _type(inner[0]) if inner else "string"
    return str(kind[0] if isinstance(kind, list) and kind else kind).lower()


#: A value of each type, for arguments that a tool requires and the script says nothing about.
_BLANKS: Mapping[str, Any] = {
    "boolean": False,
    "integer": 1,
    "number": 1,
    "array": [],
    "object": {},
    "null": None,
}


def _fill(schema: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the schema knows, and a blank for everything else that it requires."""
    properties = schema.get("properties") or {}
    filled = {key: value for key, value in values.items() if key in properties}
    for key in schema.get("required") or []:
        if key not in filled:
            row = properties.get(key) or {}
            enum = row.get("enum")
            filled[key] = enum[0] if enum else _BLANKS.get(_type(row), "scripted")
    return filled
