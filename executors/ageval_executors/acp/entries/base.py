"""What is known of an agent: its install, its start, and how it is pointed at a model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ageval_executors.acp.usage import UsageRule
from pytest_ageval.errors import ExecutorError

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping

    from pytest_ageval.executor import PermissionPolicy

#: The id of the provider that we define in an agent's own configuration.
PROVIDER = "ageval"
#: Where npm puts packages.
MODULES = "{runtime}/node_modules"
#: The interpreter of an install from PyPI. ``-P`` and ``-s``: neither the agent's directory of programs
#: nor the user's site-packages are searched for modules.
PYTHON = ("{runtime}/bin/python3", "-sP")


@dataclass(frozen=True, slots=True)
class Target:
    """What an agent is to be pointed at. `home` is HOME as the agent spells it.

    With `login` the agent signs in with a login file in its HOME; there is no key and no `base_url`.
    """

    model: str | None
    effort: str | None
    base_url: str | None
    api_key: str | None
    key_name: str | None
    permission: PermissionPolicy
    home: str
    login: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    """What one entry adds to its start: arguments, variables, and texts of files by their path below HOME."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    directories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Python:
    """Which Python runs an agent from PyPI: at least `floor`, and below `ceiling` (major, minor)."""

    floor: tuple[int, int]
    ceiling: tuple[int, int] = (3, 14)


#: Whether a session can be continued by ``session/load``. any: also after the agent was killed.
#: clean: only if the agent had ended by itself.
Resume = Literal["any", "clean", "no"]
#: A transport of an MCP server.
Transport = Literal["stdio", "http", "sse"]

ALL_MCP: frozenset[Transport] = frozenset(("stdio", "http", "sse"))
NO_MCP: frozenset[Transport] = frozenset()


@dataclass(frozen=True, slots=True)
class Entry:
    """One agent. In `argv` and `path`, ``{runtime}`` is the install, ``{platform}`` is ``linux-x64`` or
    ``linux-arm64``, ``{node}`` the Node binary."""

    name: str
    argv: tuple[str, ...]
    #: npm packages; with `python` they are distributions of PyPI instead.
    packages: Mapping[str, str] = field(default_factory=dict)
    #: Lowest Node (major, minor) that runs it; None: it needs Node only to be installed, or not at all.
    node: tuple[int, int] | None = None
    python: Python | None = None
    #: JavaScript that Node runs in the install's directory when npm is done.
    finish: str | None = None
    #: The variable under which the agent looks for its key.
    key_env: str | None = None
    #: Where the agent goes without ``base_url``.
    default_url: str | None = None
    #: With ``base_url`` a model must be named, though the agent has one of its own.
    moves_with_model: bool = False
    configure: Callable[[Target], Setup] = lambda target: Setup()
    #: Directories to put in front of PATH.
    path: tuple[str, ...] = ()
    usage: UsageRule = field(default_factory=UsageRule)
    #: The session mode in which it asks no permission; set when the policy is ``allow``.
    quiet_mode: str | None = None
    asks_permission: bool = True
    #: The model is fixed by `configure`; else it is chosen by a config option of the session.
    model_at_start: bool = True
    effort_at_start: bool = False
    #: What the adapter, not the model, says in an agent message: kept out of the answer.
    notice: re.Pattern[str] | None = None
    #: Where the agent keeps its own journal, below HOME, when it tells failures nowhere else.
    journal: str | None = None
    #: How the answer begins of a turn that ended with ``refusal`` because the provider failed.
    failure_text: re.Pattern[str] | None = None
    resume: Resume = "any"
    #: Transports of MCP servers that reach the agent through ``session/new``.
    mcp: frozenset[Transport] = ALL_MCP
    #: Directories, below HOME, in which the agent looks for skills; () if it has none.
    skills: tuple[str, ...] = ()
    #: The file, below HOME, with the instructions that the agent reads in every session.
    instructions: str | None = None
    #: Files, below HOME, that we write whole, so that nobody else can.
    writes: tuple[str, ...] = ()
    #: Files, below HOME, that a login of the operator has left; () if it takes none.
    logins: tuple[str, ...] = ()


def toml(value: str) -> str:
    """`value` as a string of TOML."""
    return json.dumps(value, ensure_ascii=False)  # a JSON string is a TOML basic string


def need_model(target: Target, entry: str) -> str:
    """The model's id. Raises `ExecutorError` ``acp_model_missing``."""
    if not target.model:
        raise ExecutorError(
            "acp_model_missing",
            f"{entry} with a base_url needs a model: set model.id, or --model",
        )
    return target.model


def need_base_url(target: Target, entry: str) -> str:
    """The provider's address. Raises `ExecutorError` ``acp_base_url_missing``."""
    if not target.base_url:
        raise ExecutorError(
            "acp_base_url_missing",
            f"{entry} has no provider of its own here: set base_url, or --base-url",
        )
    return target.base_url
