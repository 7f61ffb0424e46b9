"""The kinds of box and the executors that exist, by name. A new one of ours is one line here."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_ageval.box import Box
from pytest_ageval.errors import ConfigError
from pytest_ageval.executor import Executor

if TYPE_CHECKING:
    from pytest_ageval.extensions import PluginPackage

BOXES: Mapping[str, str] = {
    "daytona": "ageval_boxes.daytona:DaytonaBox",
    "docker": "ageval_boxes.docker_box:DockerBox",
    "e2b": "ageval_boxes.e2b:E2BBox",
    "local": "ageval_boxes.local:LocalBox",
    "ssh": "ageval_boxes.ssh:SshBox",
}

EXECUTORS: Mapping[str, str] = {
    "acp": "ageval_executors.acp:AcpExecutor",
    "acp-oneshot": "ageval_executors.acp_oneshot:AcpOneshotExecutor",
    "anthropic-http": "ageval_executors.anthropic_http:AnthropicExecutor",
    "dsh": "ageval_executors.dsh:DshExecutor",
    "miniswe": "ageval_executors.miniswe:MinisweExecutor",
    "nop": "ageval_executors.nop:NopExecutor",
    "openai-http": "ageval_executors.openai_http:OpenAIExecutor",
    "openhands": "ageval_executors.openhands:OpenHandsExecutor",
    "oracle": "ageval_executors.oracle:OracleExecutor",
    "terminus-2": "ageval_executors.terminus:TerminusExecutor",
}


class Registry:
    """Looks up classes by name and imports them when first asked for.

    `boxes` and `executors` are further ones, from the hooks ``pytest_ageval_box_kinds`` and
    ``pytest_ageval_executors``; they may not take a name of ours. `plugins` are packages in the format
    ``ageval.plugin/1``, whose box or executor has the name of the plugin.
    """

    def __init__(
        self,
        boxes: Iterable[Mapping[str, type[Box]]] = (),
        executors: Iterable[Mapping[str, type[Executor]]] = (),
        plugins: Iterable[PluginPackage] = (),
    ) -> None:
        self._plugins = {package.plugin_id: package for package in plugins}
        self._boxes: dict[str, str | type[Box] | Packaged] = dict(BOXES)
        self._executors: dict[str, str | type[Executor] | Packaged] = dict(EXECUTORS)
        _extend(self._boxes, boxes, Box, "box kind")
        _extend(self._executors, executors, Executor, "executor")
        for table, slot in ((self._boxes, "environment"), (self._executors, "executor")):
            for name, package in self._plugins.items():
                if slot in package.exclusive:
                    if name in table:
                        raise package.source.error(
                            "plugin_contract", f"the name {name!r} is taken", "/plugin_id"
                        )
                    table[name] = Packaged(package, slot)

    def extension(self, plugin_id: str) -> PluginPackage | None:
        """The plugin of that name in the format ``ageval.plugin/1``, if there is one."""
        return self._plugins.get(plugin_id)

    def box_kinds(self) -> list[str]:
        """The names that ``--box`` takes."""
        return sorted(self._boxes)

    def executor_kinds(self) -> list[str]:
        """The names that a profile's ``executor`` takes."""
        return sorted(self._executors)

    def plugin_ids(self) -> list[str]:
        """The names that a row of a profile's ``extensions`` may have."""
        return sorted({*self._boxes, *self._executors, *self._plugins})

    def box(self, kind: str) -> type[Box]:
        """The class of that kind; ConfigError ``unknown_box`` when there is none."""
        found: type[Box] = _load(self._boxes, kind, "unknown_box", "box kind")
        return found

    def executor(self, kind: str) -> type[Executor]:
        """The class of that name; ConfigError ``unknown_executor`` when there is none."""
        found: type[Executor] = _load(self._executors, kind, "unknown_executor", "executor")
        return found

    def reap(self, kinds: Iterable[str], labels: Mapping[str, str], when: str) -> Iterator[str]:
        """Remove the boxes with these labels that nobody owns any more; a line for each, and for what failed.

        A kind that cannot be swept stops nobody: the line says `when` it can be.
        """
        for kind in sorted(set(kinds)):
            try:
                removed = self.box(kind).reap(labels)
            except Exception as error:  # a vendor's SDK may raise anything; the other kinds are removed
                yield f"could not remove leftovers of kind {kind}: {error}; {when}: pytest-ageval clean"
                continue
            for what in removed:
                yield f"removed a leftover: {what}"


@dataclass(frozen=True, slots=True)
class Packaged:
    """A class in a plugin's directory, not imported yet."""

    package: PluginPackage
    slot: str

    def load(self) -> type:
        """Import it. Raises ConfigError ``plugin_contract``."""
        row = self.package.exclusive[self.slot]
        base = Box if self.slot == "environment" else Executor
        found = self.package.load(row.entry)
        if not (isinstance(found, type) and issubclass(found, base)):
            raise self.package.source.error(
                "plugin_contract",
                f"{row.entry} must be a subclass of {base.__module__}.{base.__name__}, found {found!r}",
                "/slots/exclusive",
            )
        return found


def _extend(table: dict[str, Any], more: Iterable[Mapping[str, Any]], base: type, what: str) -> None:
    for mapping in more:
        for name, cls in mapping.items():
            if name in table:
                raise ConfigError("plugin_contract", f"the {what} {name!r} is already registered")
            if not (isinstance(cls, type) and issubclass(cls, base)):
                raise ConfigError(
                    "plugin_contract",
                    f"the {what} {name!r} must be a subclass of {base.__module__}.{base.__name__}, "
                    f"found {cls!r}",
                )
            table[name] = cls


def _load(table: dict[str, Any], name: str, code: str, what: str) -> Any:
    try:
        entry = table[name]
    except KeyError:
        close = difflib.get_close_matches(name, table, 1)
        raise ConfigError(
            code,
            f"there is no {what} {name!r}; known: {', '.join(sorted(table))}",
            hint=f"did you mean {close[0]!r}?" if close else None,
        ) from None
    if isinstance(entry, Packaged):
        entry = table[name] = entry.load()
    elif isinstance(entry, str):
        module, _, attribute = entry.partition(":")
        entry = table[name] = getattr(importlib.import_module(module), attribute)
    return entry
