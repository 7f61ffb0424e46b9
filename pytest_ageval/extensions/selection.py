"""Which plugins take part in an attempt, in which order, and whether what they need is here."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_ageval.config.where import did_you_mean, join_pointer, listed
from pytest_ageval.errors import ConfigError
from pytest_ageval.extensions.manifest import EXCLUSIVE, PluginPackage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pytest_ageval.box import Box
    from pytest_ageval.config.bindings import Origin
    from pytest_ageval.config.formats import ExtensionRow, SlotRow
    from pytest_ageval.config.locked import Binding

#: The exclusive slots that a row of ``extensions`` decides. Box and executor have keys of their own.
CHOSEN_BY_ROW = ("evaluation_runtime", "trajectory_seal")
#: Services that the engine itself has, whatever fills them.
BUILTIN_SERVICES = frozenset(EXCLUSIVE)


@dataclass(frozen=True, slots=True)
class Handler:
    """One plugin in one slot. `roles` are those whose profiles name it; `options` are of their rows."""

    package: PluginPackage
    slot: str
    entry: str
    priority: int
    roles: frozenset[str]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def order(self) -> tuple[int, str]:
        """The lower one is further out."""
        return self.priority, self.package.plugin_id


def check_row(row: ExtensionRow, package: PluginPackage, origin: Origin, at: str) -> None:
    """The slots that a row of ``extensions`` names are filled by the plugin. Raises ConfigError."""
    filled = {*package.exclusive, *(slot.id for slot in package.chain)}
    for slot in _asked(row.slot, row.slots) or ():
        if slot not in filled:
            raise origin.error(
                "plugin_contract",
                f"the plugin {package.plugin_id} does not fill the slot {slot!r}; it fills: {listed(filled)}",
                f"{at}/{'slot' if row.slot is not None else 'slots'}",
                did_you_mean(slot, filled),
            )


def _asked(slot: str | None, slots: Iterable[str] | None) -> frozenset[str] | None:
    """The slots that a row restricts the plugin to; None: all of them."""
    if slot is None and slots is None:
        return None
    return frozenset(([slot] if slot is not None else []) + list(slots or ()))


def handlers(bindings: Mapping[str, Binding], lookup: Callable[[str], PluginPackage | None]) -> list[Handler]:
    """Everything that the roles' rows of ``extensions`` bring, the outermost first.

    A plugin that several roles name takes part once in a slot, with the options of the first of them,
    unless their priorities or options differ.
    """
    found: dict[tuple[str, str, int, str], Handler] = {}
    for role, binding in bindings.items():
        for row in binding.extensions:
            package = lookup(row["plugin"])
            if package is None:
                continue
            for slot in _slots(package, _asked(row.get("slot"), row.get("slots"))):
                priority = row.get("priority", slot.priority)
                options = dict(row.get("options") or {})
                key = (package.plugin_id, slot.id, priority, repr(sorted(options.items())))
                earlier = found.get(key)
                roles = frozenset({role}) | (earlier.roles if earlier is not None else frozenset())
                found[key] = Handler(package, slot.id, slot.entry, priority, roles, options)
    return sorted(found.values(), key=lambda handler: handler.order)


def _slots(package: PluginPackage, asked: frozenset[str] | None) -> Iterator[SlotRow]:
    exclusive = (row for name, row in package.exclusive.items() if name in CHOSEN_BY_ROW)
    for row in (*exclusive, *package.chain):
        if asked is None or row.id in asked:
            yield row


def winner(found: Iterable[Handler], slot: str) -> Handler | None:
    """The one implementation of an exclusive slot. ConfigError ``extension_conflict`` for two of one rank."""
    rivals = [handler for handler in found if handler.slot == slot]
    best = [handler for handler in rivals if handler.priority == rivals[0].priority]
    names = {handler.package.plugin_id for handler in best}
    if len(names) > 1:
        raise ConfigError(
            "extension_conflict",
            f"the plugins {listed(names)} both fill the slot {slot} with the priority {best[0].priority}",
            hint="give one of their rows in extensions another priority",
        )
    return best[0] if best else None


def check_needs(
    packages: Iterable[PluginPackage], cls: type[Box], lookup: Callable[[str], PluginPackage | None]
) -> None:
    """What the plugins of an attempt need is here: modules, files, other plugins, the box's capabilities.

    Raises ConfigError ``host_requires_unsatisfied``, ``plugin_requires_unsatisfied`` or
    ``unsupported_capability``.
    """
    packages = list(packages)
    services = BUILTIN_SERVICES.union(*(package.services for package in packages))
    for package in packages:
        _check_host(package)
        _check_plugins(package, lookup)
        _check_injected(package, cls, services)


def _check_host(package: PluginPackage) -> None:
    for index, row in enumerate(package.file.host_requires or ()):
        at = join_pointer("host_requires", index)
        if row.import_ is not None and not _importable(row.import_):
            raise package.source.error(
                "host_requires_unsatisfied",
                f"the plugin {package.plugin_id} needs the module {row.import_!r}, which is not installed",
                at,
                row.hint,
            )
        if row.file is not None and not (package.root / row.file).is_file():
            raise package.source.error(
                "host_requires_unsatisfied",
                f"the plugin {package.plugin_id} needs its file {row.file}, which is not there",
                at,
                row.hint,
            )


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _check_plugins(package: PluginPackage, lookup: Callable[[str], PluginPackage | None]) -> None:
    for index, row in enumerate(package.file.plugin_requires or ()):
        if lookup(row.plugin_id) is None:
            raise package.source.error(
                "plugin_requires_unsatisfied",
                f"the plugin {package.plugin_id} needs the plugin {row.plugin_id}, which is not here",
                join_pointer("plugin_requires", index),
                row.hint or "name its directory with --ageval-plugins",
            )


def _check_injected(package: PluginPackage, cls: type[Box], services: frozenset[str]) -> None:
    for index, row in enumerate(package.file.inject or ()):
        at = join_pointer("inject", index)
        if row.service not in services:
            raise package.source.error(
                "plugin_requires_unsatisfied",
                f"the plugin {package.plugin_id} needs the service {row.service!r}, which no plugin of this "
                f"attempt offers; there are: {listed(services)}",
                f"{at}/service",
                did_you_mean(row.service, services),
            )
        missing = set(row.capabilities or ()) - cls.capabilities if row.service == "environment" else None
        if missing:
            raise package.source.error(
                "unsupported_capability",
                f"the plugin {package.plugin_id} needs {listed(missing)}, which the box {cls.kind} does not "
                "offer",
                f"{at}/capabilities",
                f"{cls.kind} offers: {listed(cls.capabilities)}",
            )
