"""Agent packages: a name for a whole binding (``agent.yaml``, ``ageval.agent/1``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from pytest_ageval.config.check import Source, check_format, convert
from pytest_ageval.config.formats import AGENT_FORMAT, AgentFile, plain
from pytest_ageval.config.hashing import digest_of
from pytest_ageval.config.profiles import check_row, model_error
from pytest_ageval.config.where import did_you_mean, listed
from pytest_ageval.config.yamlio import load_yaml
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_ageval.box import Box
    from pytest_ageval.executor import Executor
    from pytest_ageval.extensions.manifest import PluginPackage

AGENT_FILE = "agent.yaml"
BUILTIN = Path(__file__).parent.parent / "agents"


class Kinds(Protocol):
    """What is asked of a registry: classes by name. They raise ConfigError for an unknown name."""

    def box_kinds(self) -> list[str]:
        """The names of the kinds of box."""
        ...

    def executor_kinds(self) -> list[str]:
        """The names of the executors."""
        ...

    def plugin_ids(self) -> list[str]:
        """The names that a row of ``extensions`` may have."""
        ...

    def extension(self, plugin_id: str) -> PluginPackage | None:
        """The ``ageval.plugin/1`` plugin of that name."""
        ...

    def box(self, kind: str) -> type[Box]:
        """The class of a kind of box."""
        ...

    def executor(self, kind: str) -> type[Executor]:
        """The class of an executor."""
        ...


@dataclass(frozen=True, slots=True)
class AgentPackage:
    """An agent by name. `binding` is one row of a profiles.yaml as plain data; `path` is its file.

    `ref` identifies the package and its content: ``codex@0.1.0+sha256:<12 hex digits>``.
    """

    agent_id: str
    version: str
    binding: Mapping[str, Any]
    path: Path | None = None
    label: str | None = None
    description: str = ""
    tags: tuple[str, ...] = ()
    ref: str = ""
    root: Path | None = field(default=None, compare=False)

    @property
    def source(self) -> Source:
        """For error messages."""
        return Source(self.path, f"agent {self.agent_id}")


def known_agents(registry: Kinds) -> list[str]:
    """The names that ``--agent`` takes: the packages here, and executors that no package binds.

    Of the latter only those that need no options.
    """
    packages = _builtin_agents()
    bound = {package.binding.get("executor") for package in packages.values()}
    alone = {name for name in set(registry.executor_kinds()) - bound if _stands_alone(registry, name)}
    return sorted({*packages, *alone})


def _stands_alone(registry: Kinds, executor: str) -> bool:
    try:
        msgspec.convert({}, registry.executor(executor).Options)
    except msgspec.ValidationError:
        return False
    except ConfigError:  # a plugin's, which cannot be loaded: said when it is asked for
        return True
    return True


def load_agent(ref: str, registry: Kinds) -> AgentPackage:
    """The agent that `ref` names: ``NAME``, ``NAME@VERSION``, or the path of a package.

    A path has a ``/`` in it or ends in ``.yaml``. Raises ConfigError ``unknown_agent``, or what is
    wrong in the package.
    """
    if "/" in ref or ref.endswith(".yaml") or ref in (".", ".."):
        return _from_path(ref)
    name, _, version = ref.partition("@")
    packages = _builtin_agents()
    package = packages.get(name)
    if package is None:
        known = known_agents(registry)
        if name not in known:
            raise ConfigError(
                "unknown_agent",
                f"there is no agent {name!r}; known: {listed(known)}",
                hint=_hint(name, known, registry),
            )
        package = AgentPackage(name, "0", {"executor": name}, ref=name)
    if version and version != package.version:
        raise ConfigError(
            "unknown_agent", f"the agent {name} is here in version {package.version}, not {version}"
        )
    return package


def _hint(name: str, known: list[str], registry: Kinds) -> str:
    if name in registry.executor_kinds():
        return f"the executor {name} needs options: write a package, or bind it in profiles.yaml"
    return did_you_mean(name, known) or "a package of your own is given by its path"


def agent_name(ref: str) -> str:
    """A short name for `ref` without reading anything: the package directory's name for a path."""
    if "/" in ref or ref.endswith(".yaml"):
        path = Path(ref)
        return path.parent.absolute().name if path.name == AGENT_FILE else path.stem
    return ref


def _from_path(ref: str) -> AgentPackage:
    path = Path(ref).expanduser()
    if path.is_dir():
        path = path / AGENT_FILE
    if not path.is_file():
        raise ConfigError(
            "unknown_agent",
            f"there is no agent package at {ref}",
            hint=f"expected {AGENT_FILE} there",
        )
    return read_agent(path)


@lru_cache(maxsize=1)
def _builtin_agents() -> Mapping[str, AgentPackage]:
    """The packages that are installed with this one. Read once: they do not change."""
    found = {}
    for path in sorted(BUILTIN.glob(f"*/{AGENT_FILE}")):
        package = read_agent(path)
        found[package.agent_id] = package
    return found


def read_agent(path: Path) -> AgentPackage:
    """The package in the file `path`."""
    source = Source(path)
    data = load_yaml(path)
    check_format(data, AGENT_FORMAT, source)
    try:
        file = convert(data, AgentFile, source)
    except ConfigError as error:
        raise model_error(error) from None
    check_row(file.binding, source, "/binding", needs_model_id=False)
    if file.binding.executor is None:
        raise source.error("missing_binding", "binding.executor is missing", "/binding")
    if file.binding.agent_ref is not None:
        raise source.error("invalid_schema", "agent_ref is set by the program", "/binding/agent_ref")
    content = digest_of({"agent_id": file.agent_id, "binding": data["binding"]})
    return AgentPackage(
        agent_id=file.agent_id,
        version=file.version,
        binding=plain(file.binding),
        path=path,
        label=file.label,
        description=file.description or "",
        tags=tuple(file.tags or ()),
        ref=f"{file.agent_id}@{file.version}+{content[:19]}",
        root=path.parent,
    )
