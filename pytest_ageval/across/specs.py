"""Execution specs of other machines, and how ssh is asked to notice that one is gone."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pytest_ageval import __version__

#: What pytest-xdist writes into specs without a directory.
XDIST_DEFAULT = "pyexecnetcache"

#: Seconds within which a host must answer, connection and start of Python included.
ANSWER_SECONDS = 30.0

#: After the user's own configuration, whose values win.
_SSH_CONFIG = """{includes}
Match all
  ConnectTimeout 10
  ServerAliveInterval 10
  ServerAliveCountMax 6
  BatchMode yes
"""

#: Run on the host, before anything else is. Old versions of Python must understand it.
_PROBE = """
import json, sys
found = {"python": list(sys.version_info[:3]), "executable": sys.executable}
for name in ("pytest", "xdist", "execnet", "pytest_ageval"):
    try:
        module = __import__(name)
        found[name] = str(getattr(module, "__version__", "?"))
    except Exception as error:
        found[name] = None
        found["why"] = "%s: %s" % (type(error).__name__, error)
print("ageval-probe " + json.dumps(found))
"""


class HostError(Exception):
    """A host cannot be used, and why."""


class Key(NamedTuple):
    """What makes two specs one host: they share the copy of the files."""

    ssh: str
    ssh_config: str
    python: str
    chdir: str


def is_remote(spec: Any) -> bool:
    """The spec is of another machine that is reached with ssh, without a proxy."""
    return bool(spec.ssh) and not spec.via


def key_of(spec: Any) -> Key:
    """The host of a spec."""
    return Key(str(spec.ssh), str(spec.ssh_config or ""), str(spec.python or ""), str(spec.chdir or ""))


def prepare(spec: Any, directory: Path) -> None:
    """Give a spec the generated ssh configuration, and take away pytest-xdist's directory."""
    if spec.chdir == XDIST_DEFAULT and "chdir=" not in str(spec):
        spec.chdir = None
    spec.ssh_config = str(_ssh_config(directory, spec.ssh_config))


def _ssh_config(directory: Path, own: str | None) -> Path:
    """A file that includes the user's configuration and adds what notices a host that is gone."""
    given = (
        [Path(own).expanduser().absolute()] if own else [Path("~/.ssh/config"), Path("/etc/ssh/ssh_config")]
    )
    includes = "\n".join(f'Match all\nInclude "{path}"' for path in given)
    name = f"ssh-{abs(hash(tuple(given))):x}"
    path = directory / name
    if not path.exists():
        path.write_text(_SSH_CONFIG.format(includes=includes), encoding="utf-8")
        path.chmod(0o600)
    return path


def command(spec: Any, *words: str) -> list[str]:
    """The command line of ssh that runs `words` with the spec's Python, as execnet would."""
    return [
        *("ssh", "-F", str(spec.ssh_config), *spec.ssh.split()),
        f"{spec.python or 'python'} {' '.join(map(shlex.quote, words))}",
    ]


def answers(spec: Any, seconds: float = ANSWER_SECONDS) -> str | None:
    """Why a new connection to the host cannot be made; None when it can."""
    try:
        found = _run(spec, ["-c", "pass"], "", seconds)
    except subprocess.TimeoutExpired:
        return f"no answer within {seconds:g} s"
    except OSError as error:
        return str(error)
    return None if found.returncode == 0 else _why(found)


def probe(spec: Any) -> dict[str, Any]:
    """Versions of what the host has. Raises `HostError` when it cannot run attempts of this controller."""
    try:
        found = _run(spec, ["-"], _PROBE, ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        raise HostError(f"{spec.ssh}: no answer within {ANSWER_SECONDS:g} s") from None
    except OSError as error:
        raise HostError(f"{spec.ssh}: ssh cannot be started: {error.strerror}") from None
    rows = [line for line in found.stdout.splitlines() if line.startswith("ageval-probe ")]
    if not rows:
        raise HostError(f"{spec.ssh}: {_why(found)}")
    versions: dict[str, Any] = json.loads(rows[-1].partition(" ")[2])
    check(str(spec.ssh), versions)
    return versions


def check(host: str, versions: dict[str, Any]) -> None:
    """Raise `HostError` for versions that do not suit."""
    import pytest

    executable = versions.get("executable") or "python"
    python = tuple(versions["python"])
    if python < (3, 11):
        raise HostError(
            f"{host}: {executable} is Python {'.'.join(map(str, python))}, 3.11 or newer is needed: "
            f"name another one, ssh={host}//python=PATH"
        )
    remedy = (
        f"{executable} -m pip install 'pytest-ageval[xdist]=={__version__}' 'pytest=={pytest.__version__}'"
    )
    missing = [name for name in ("pytest", "pytest_ageval", "xdist") if versions.get(name) is None]
    if missing:
        raise HostError(
            f"{host}: {executable} has no {' and no '.join(missing)} ({versions.get('why')}); there: {remedy}"
        )
    if versions["pytest_ageval"] != __version__:
        raise HostError(
            f"{host}: pytest-ageval is {versions['pytest_ageval']} there and {__version__} here; "
            f"there: {remedy}"
        )
    if _major(versions["pytest"]) != _major(pytest.__version__):
        raise HostError(
            f"{host}: pytest is {versions['pytest']} there and {pytest.__version__} here; there: {remedy}"
        )


def _major(version: str) -> str:
    return version.partition(".")[0]


def _run(spec: Any, words: Iterable[str], text: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(spec, *words), input=text, capture_output=True, text=True, errors="replace", timeout=seconds
    )


def _why(found: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (found.stderr or "").splitlines() if line.strip()]
    return " / ".join(lines[-2:]) or f"ssh ended with {found.returncode}"
