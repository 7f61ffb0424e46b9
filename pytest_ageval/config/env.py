"""Credentials and addresses: names of environment variables, never values, in everything that is written.

A name is looked up in the caller's environment, then in ``.env`` of the data set root, then in
``.env`` of pytest's rootdir. No other file is read.
"""

from __future__ import annotations

import ipaddress
import os
import re
from typing import TYPE_CHECKING, Protocol
from urllib.parse import SplitResult, urlsplit

from pytest_ageval.config.dataset import Signature, signature_of
from pytest_ageval.config.where import display
from pytest_ageval.config.yamlio import read_text
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pytest_ageval.config.check import Source

_LOCATOR = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_EMBEDDED = re.compile(r"\$\{([^{}]*)\}")
_ENV_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_QUOTED = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)')\s*(?:#.*)?""")

_env_files: dict[Path, tuple[Signature, Mapping[str, str]]] = {}

#: On another machine than the caller's: his environment, and the ``.env`` files that he has there.
_callers: Callable[[str], str | None] | None = None
_received: dict[Path, str] = {}


def from_elsewhere(environment: Callable[[str], str | None], env_files: Mapping[Path, str]) -> None:
    """Look names up with the caller, who is on another machine; `env_files` are on no disk of this one."""
    global _callers
    _callers = environment
    _received.update(env_files)


class HasEnvFiles(Protocol):
    """A data set or a locked task."""

    @property
    def env_files(self) -> tuple[Path, ...]:
        """The ``.env`` files that count, the first one first."""
        ...


class Located(Protocol):
    """Makes errors that name a place."""

    def error(self, code: str, message: str, pointer: str, hint: str | None = None) -> ConfigError:
        """A ConfigError at `pointer`."""
        ...


def resolve_secret(name: str, owner: HasEnvFiles) -> str | None:
    """The value of the variable `name`, or None when it is unset or empty everywhere.

    Raises ConfigError for a ``.env`` file that cannot be parsed.
    """
    if _callers is not None and (found := _callers(name)):
        return found
    for table in (os.environ, *map(read_env_file, owner.env_files)):
        if value := table.get(name):
            return value
    return None


def read_env_file(path: Path) -> Mapping[str, str]:
    """The ``NAME=value`` lines of a file; empty when there is none. Values are not expanded.

    ``#`` lines and ``export`` are allowed, values may be quoted. Raises ConfigError ``invalid_env_file``.
    """
    if path in _received:
        return _parse_env(_received[path], display(path))
    signature = signature_of(path)
    if signature is None:
        return {}
    cached = _env_files.get(path)
    if cached is None or cached[0] != signature:
        cached = _env_files[path] = (signature, _parse_env(read_text(path), display(path)))
    return cached[1]


def _parse_env(text: str, file: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, row in enumerate(text.splitlines(), 1):
        line = row.strip()
        if not line or line.startswith("#"):
            continue
        match = _ENV_LINE.fullmatch(line)
        if match is None:  # the line is not shown: it may hold a secret
            raise ConfigError("invalid_env_file", "expected NAME=value", file=file, line=number)
        name = match[1]
        if name in lines:
            raise ConfigError(
                "invalid_env_file",
                f"{name} is set twice: lines {lines[name]} and {number}",
                file=file,
                line=number,
            )
        lines[name] = number
        found[name] = _unquoted(match[2])
    return found


def _unquoted(text: str) -> str:
    quoted = _QUOTED.fullmatch(text)
    if quoted is None:
        return re.sub(r"\s+#.*", "", text)
    if quoted[2] is not None:
        return quoted[2]
    escapes = {"n": "\n", "r": "\r", "t": "\t"}
    return re.sub(r"\\(.)", lambda found: escapes.get(found[1], found[1]), quoted[1])


def locator(text: str, source: Source, pointer: str) -> str:
    """The name in ``${NAME}``; ConfigError when `text` is anything else. Never shows `text`."""
    match = _LOCATOR.fullmatch(text.strip())
    if match is None:
        raise source.error(
            "invalid_schema",
            "api_key must name an environment variable as ${NAME}; the value found is not shown",
            pointer,
            "a credential is never written into a configuration file",
        )
    return match[1]


def check_base_url(text: str, source: Source, pointer: str) -> str:
    """`text` if it is an http(s) URL without credentials, possibly with ``${NAME}`` in it."""
    if _LOCATOR.fullmatch(text.strip()):
        return text.strip()
    for name in _EMBEDDED.findall(text):
        if not _LOCATOR.fullmatch("${" + name + "}"):
            raise source.error("invalid_schema", f"{name!r} is not a variable's name", pointer)
    _split_url(text, source, pointer)
    return text.strip()


def expand_base_url(text: str, owner: HasEnvFiles, source: Located, pointer: str) -> str:
    """`text` with every ``${NAME}`` replaced. ConfigError ``unset_variable`` names one that is unset."""

    def value(match: re.Match[str]) -> str:
        found = resolve_secret(match[1], owner)
        if found is None:
            raise source.error(
                "unset_variable",
                f"the environment variable {match[1]} is not set",
                pointer,
                f"export {match[1]}=... or write it into .env beside ageval.yaml",
            )
        return found

    url = _LOCATOR.sub(value, text.strip())
    _split_url(url, source, pointer)
    return url


def host_of(url: str) -> str:
    """The host of a checked URL, in lower case."""
    return (urlsplit(url).hostname or "").lower()


def is_loopback(url: str) -> bool:
    """The URL points to this machine."""
    host = host_of(url)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _split_url(text: str, source: Located, pointer: str) -> SplitResult:
    """The parts of an http(s) URL. A URL that is refused is not shown: it may hold a password."""
    try:
        parts = urlsplit(text.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise source.error("invalid_schema", f"base_url is not a URL: {error}", pointer) from None
    if parts.username is not None or parts.password is not None:
        raise source.error(
            "invalid_schema",
            "base_url must not hold a user name or a password",
            pointer,
            "write the key's variable into api_key: ${NAME}",
        )
    if parts.query or parts.fragment:
        raise source.error(
            "invalid_schema",
            "base_url must not hold a query or a fragment: it would be stored as it is",
            pointer,
            "write the key's variable into api_key: ${NAME}",
        )
    if parts.scheme not in ("http", "https") or not host:
        raise source.error(
            "invalid_schema",
            "base_url must be an http(s) URL or ${NAME}",
            pointer,
        )
    return parts
