"""How one agent is started for one session: command line, environment, files, and the key it gets."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ageval_executors.acp.entries import Entry, Target
from pytest_ageval.box import HOME, WORKSPACE, Box
from pytest_ageval.errors import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ageval_executors.acp.install import Runtime
    from pytest_ageval.executor import PermissionPolicy, Session

#: What an agent gets as its key when the model is on this machine and nobody configured one.
DUMMY_KEY = "no-key-needed-on-loopback"

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Launch:
    """A ready command line. `files` are texts by their path in the box."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]
    directories: tuple[str, ...]
    #: What ``{home}`` and the like stand for.
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The program, for messages: never its arguments, which may hold addresses."""
        return PurePosixPath(self.argv[0]).name


def is_loopback(url: str | None) -> bool:
    """`url` names this machine."""
    host = urlsplit(url or "").hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def resolve_key(session: Session, entry: Entry) -> str | None:
    """The agent's key. Raises `ExecutorError` ``acp_credentials_missing`` if it needs one and has none."""
    if session.login:
        return None
    if session.api_key:
        return session.api_key
    if is_loopback(session.base_url):
        return DUMMY_KEY
    if session.api_key_name is None and entry.name == "custom":
        return None
    name = session.api_key_name or entry.key_env
    if name is None:
        remedy = "set api_key: ${NAME} in the profile, where NAME holds the provider's key"
    else:
        remedy = f"the environment variable {name} is not set"
    raise ExecutorError("acp_credentials_missing", f"the agent {entry.name} has no key: {remedy}")


def build_launch(
    session: Session,
    entry: Entry,
    runtime: Runtime,
    box: Box,
    *,
    permission: PermissionPolicy,
    extra_env: Mapping[str, str],
) -> Launch:
    """Everything that `entry` needs to be started in `box`."""
    home = box.visible_path(HOME)
    key = resolve_key(session, entry)
    setup = entry.configure(
        Target(
            model=session.model.id,
            effort=session.model.reasoning_effort,
            base_url=session.base_url,
            api_key=key,
            key_name=session.api_key_name,
            permission=permission,
            home=home,
            login=session.login,
        )
    )
    fields = {
        "{runtime}": runtime.directory,
        "{node}": runtime.node,
        "{node_dir}": str(PurePosixPath(runtime.node).parent),
        "{platform}": runtime.platform,
        "{model}": session.model.id or "",
        "{base_url}": session.base_url or "",
        "{home}": home,
        "{workspace}": box.visible_path(WORKSPACE),
    }
    env = {
        "HOME": home,
        "XDG_CONFIG_HOME": f"{home}/.config",
        "XDG_DATA_HOME": f"{home}/.local/share",
        "XDG_CACHE_HOME": f"{home}/.cache",
        "XDG_STATE_HOME": f"{home}/.local/state",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "NO_BROWSER": "1",
        "LANG": "C.UTF-8",
    }
    if entry.path:
        env["PATH"] = ":".join([*(fill(part, fields) for part in entry.path), _PATH])
    if key is not None and (name := session.api_key_name if entry.key_env is None else entry.key_env):
        env[name] = key
    env |= {**setup.env, **extra_env}
    return Launch(
        argv=(*(fill(part, fields) for part in entry.argv), *setup.args),
        env=env,
        files={f"{HOME}/{name}": text for name, text in setup.files.items()},
        directories=tuple(box.visible_path(f"{HOME}/{name}") for name in setup.directories),
        fields=fields,
    )


def fill(text: str, fields: Mapping[str, str]) -> str:
    """`text` with the known fields replaced; other braces are left as they are."""
    for name, value in fields.items():
        text = text.replace(name, value)
    return text


async def write_files(box: Box, launch: Launch) -> None:
    """Make the directories and put the files into the box."""
    parents = {str(PurePosixPath(box.visible_path(path)).parent) for path in launch.files}
    if wanted := sorted({*launch.directories, *parents}):
        made = await box.exec(["mkdir", "-p", "--", *wanted], timeout=60)
        if not made.ok:
            raise ExecutorError(
                "acp_home_prepare_failed", f"could not make {', '.join(wanted)}: {made.stderr}"
            )
    if not launch.files:
        return
    with tempfile.TemporaryDirectory(prefix="ageval-acp-") as folder:
        for number, (path, text) in enumerate(launch.files.items()):
            copy = Path(folder, str(number))
            if path.endswith(".json"):
                text = await _over_given(box, path, text)
            await asyncio.to_thread(copy.write_text, text, "utf-8")
            await box.upload(copy, path)


async def _over_given(box: Box, path: str, text: str) -> str:
    """Our settings over those that a home file has put there: what we do not say stays."""
    command = ["sh", "-c", 'test -f "$1" && head -c 200000 -- "$1"', "sh", box.visible_path(path)]
    found = await box.exec(command, timeout=60)
    try:
        given = json.loads(found.stdout) if found.ok else None
    except ValueError:
        given = None
    if not isinstance(given, dict):
        return text
    return json.dumps(_merged(given, json.loads(text)), indent=1)


def _merged(given: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    found = dict(given)
    for key, value in ours.items():
        before = found.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            value = _merged(before, value)
        found[key] = value
    return found
