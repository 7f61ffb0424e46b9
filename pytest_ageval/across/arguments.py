"""The command line of the controller as a worker on another machine gets it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_ageval.options import BY_NAME

#: Options of ours whose value is a path, and whether what it names is needed on the hosts.
PATHS = {
    **dict.fromkeys(("profiles", "plugins", "prices", "known_failures", "matrix", "replay"), True),
    **dict.fromkeys(("dir", "reuse", "record", "resume", "regrade", "baseline"), False),
}

#: Options of pytest and its plugins that name a file to write; nobody writes it on a host.
_WRITTEN = (
    "--html",
    "--junitxml",
    "--junit-xml",
    "--report-log",
    "--basetemp",
    "--rootdir",
    "-c",
    "--confcutdir",
)


class Arguments:
    """`there` gives the path on the host, `below` says of a path that it travels."""

    def __init__(self, there: Callable[[str], str], below: Callable[[Path], bool]) -> None:
        self._there = there
        self._below = below
        flags = (flag for name in PATHS for flag in (BY_NAME[name].long, *BY_NAME[name].flags))
        self._flags = frozenset((*flags, *_WRITTEN))

    def mapped(self, words: Sequence[str]) -> list[str]:
        """Absolute paths as they are on the host. Relative ones are the same there."""
        found, before = [], ""
        for word in words:
            name, equals, value = word.partition("=")
            if word.startswith("-") and equals:
                found.append(f"{name}={self._value(value, always=name in self._flags)}")
            elif word.startswith("-c") and len(word) > 2 and word[2] in "/~":
                found.append("-c" + self._value(word[2:], always=True))
            else:
                found.append(self._value(word, always=before in self._flags))
            before = word
        return found

    def environment(self, name: str, value: str) -> str:
        """The value of an ``AGEVAL_*`` variable, or of ``PYTEST_ADDOPTS``."""
        if name == "PYTEST_ADDOPTS":
            return shlex.join(self.mapped(shlex.split(value)))
        option = name.removeprefix("AGEVAL_").lower()
        if option not in PATHS:
            return value
        if BY_NAME[option].kind == "list":
            return shlex.join(self._value(word, always=True) for word in shlex.split(value))
        return self._value(value, always=True)

    def _value(self, text: str, *, always: bool) -> str:
        path, colons, rest = text.partition("::")
        if path[:2] == "~/":
            path = str(Path(path).expanduser())
        if not path.startswith("/"):
            return text
        normal = os.path.normpath(path)
        return self._there(normal) + colons + rest if always or self._below(Path(normal)) else text


def roots(config: Any) -> list[Path]:
    """What has to travel: the rootdir, and what arguments and options name outside of it."""
    from pytest_ageval.options import resolve

    here = Path(config.invocation_params.dir)
    found = [Path(config.rootpath)]
    named = [str(word).partition("::")[0] for word in config.args]
    for name in (name for name, needed in PATHS.items() if needed):
        value, source = resolve(config, name)
        if source == "ini":
            value = _below_rootdir(value, config.rootpath)
        named += value if isinstance(value, list) else [value] if isinstance(value, str) else []
    if config.inipath is not None:
        named.append(str(config.inipath))
    for text in named:
        path = Path(os.path.normpath(here / Path(text).expanduser()))
        if not path.is_relative_to(config.rootpath) and _exists(path):
            found.append(path)
    return found


def _below_rootdir(value: Any, rootdir: Path) -> Any:
    if isinstance(value, list):
        return [str(rootdir / text) for text in value]
    return str(rootdir / value) if isinstance(value, str) else value


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
