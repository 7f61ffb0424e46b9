"""Reads plugin.yaml, and imports what it names when that is first used."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.config.check import Source, check_format, convert
from pytest_ageval.config.formats import PLUGIN_FORMAT, PluginFile, SlotRow
from pytest_ageval.config.hashing import tree_digest
from pytest_ageval.config.where import did_you_mean, join_pointer, listed
from pytest_ageval.config.yamlio import load_yaml
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MANIFEST = "plugin.yaml"

#: Slots with one winner, and slots through which a value passes.
EXCLUSIVE = ("environment", "executor", "evaluation_runtime", "trajectory_seal")
CHAIN = (
    "before_environment",
    "after_environment_ready",
    "environment_setup",
    "after_environment",
    "before_run",
    "before_agent_open",
    "after_agent_open",
    "before_agent_invoke",
    "after_agent_invoke",
    "normalize_agent_result",
    "before_agent_close",
    "after_agent_close",
    "after_run",
    "before_evaluate",
    "after_evaluate",
    "trajectory_collect",
    "trajectory_enrich",
    "summary_enrich",
    "cleanup_report",
)


@dataclass(frozen=True)
class PluginPackage:
    """One plugin: what its plugin.yaml says. Nothing of its code has been imported.

    `root` is its directory, `file` the checked manifest.
    """

    file: PluginFile
    root: Path
    source: Source = field(compare=False)

    @property
    def plugin_id(self) -> str:
        """The name by which a profile asks for it."""
        return self.file.plugin_id

    @property
    def version(self) -> str:
        """As its author counts."""
        return self.file.version

    @cached_property
    def digest(self) -> str:
        """Over every file of its directory."""
        return tree_digest(self.root)

    @cached_property
    def exclusive(self) -> Mapping[str, SlotRow]:
        """The slots of which it can be the one implementation."""
        slots = self.file.slots
        return {row.id: row for row in (slots and slots.exclusive) or ()}

    @cached_property
    def chain(self) -> tuple[SlotRow, ...]:
        """The slots in which it takes part."""
        slots = self.file.slots
        return tuple((slots and slots.chain) or ())

    @cached_property
    def services(self) -> Mapping[str, str]:
        """Entries by the name under which other plugins find them."""
        exports = self.file.exports
        return {row.id: row.entry for row in (exports and exports.services) or ()}

    @property
    def layer(self) -> Path | None:
        """The Dockerfile that it adds to a box's image."""
        config = self.file.config
        return self.root / config.image_layers if config and config.image_layers else None

    def load(self, entry: str) -> Any:
        """Import ``module:attribute``. Raises ConfigError ``plugin_contract`` with the reason."""
        module, _, attribute = entry.partition(":")
        self._make_importable(module.partition(".")[0])
        try:
            found: Any = importlib.import_module(module)
            for name in attribute.split("."):
                found = getattr(found, name)
        except Exception as error:
            raise self.source.error(
                "plugin_contract",
                f"the plugin {self.plugin_id} cannot be loaded: {entry}: {type(error).__name__}: {error}",
            ) from error
        return found

    def _make_importable(self, top: str) -> None:
        """Put ``src/`` last on the import path. A module of that name elsewhere would be taken instead."""
        src = self.root / "src"
        if src.is_dir() and str(src) not in sys.path:
            sys.path.append(str(src))
            importlib.invalidate_caches()
        if not ((src / top).is_dir() or (src / f"{top}.py").is_file()):
            return
        loaded = sys.modules.get(top)
        spec = getattr(loaded, "__spec__", None) if loaded is not None else importlib.util.find_spec(top)
        places = list(spec.submodule_search_locations or [spec.origin]) if spec is not None else []
        if not any(place and Path(place).resolve().is_relative_to(src.resolve()) for place in places):
            where = ", ".join(filter(None, places)) or "elsewhere"
            raise self.source.error(
                "plugin_contract",
                f"the plugin {self.plugin_id} has a module {top!r}, and another one of that name is in "
                f"{where}",
                hint="rename the module of the plugin",
            )


def read_plugin(directory: Path, reserved: Iterable[str] = ()) -> PluginPackage:
    """The plugin in `directory`. `reserved` are names that it may not take. Raises ConfigError."""
    path = directory / MANIFEST
    source = Source(path)
    data = load_yaml(path)
    check_format(data, PLUGIN_FORMAT, source)
    file = convert(data, PluginFile, source)
    if file.plugin_id in reserved:
        raise source.error("plugin_contract", f"the name {file.plugin_id!r} is taken", "/plugin_id")
    slots = file.slots
    _check_slots((slots and slots.exclusive) or (), EXCLUSIVE, "exclusive", source)
    _check_slots((slots and slots.chain) or (), CHAIN, "chain", source)
    package = PluginPackage(file, directory.absolute(), source)
    _check_files(package)
    return package


def _check_slots(rows: Iterable[SlotRow], known: tuple[str, ...], kind: str, source: Source) -> None:
    seen = set()
    for index, row in enumerate(rows):
        at = join_pointer("slots", kind, index, "id")
        if row.id not in known:
            raise source.error(
                "plugin_contract",
                f"there is no {kind} slot {row.id!r}; there are: {listed(known)}",
                at,
                did_you_mean(row.id, known),
            )
        if row.id in seen:
            raise source.error("plugin_contract", f"the slot {row.id} is filled twice", at)
        seen.add(row.id)


def _check_files(package: PluginPackage) -> None:
    """Files that the manifest names are in the plugin's directory."""
    root = package.root.resolve()
    layer = package.layer
    if layer is not None and not (layer.is_file() and layer.resolve().is_relative_to(root)):
        raise package.source.error(
            "missing_reference",
            f"no file {layer.relative_to(package.root)} in the plugin",
            "/config/image_layers",
        )
    for index, row in enumerate(package.file.host_requires or ()):
        if (row.import_ is None) == (row.file is None):
            raise package.source.error(
                "invalid_schema",
                "a requirement has either import or file",
                join_pointer("host_requires", index),
            )


def find_plugins(paths: Iterable[Path], reserved: Iterable[str]) -> list[PluginPackage]:
    """The plugins at `paths`: each is a plugin's directory, or a directory of such.

    Raises ConfigError for a path without any, for a broken plugin, and for two of one name.
    """
    names = set(reserved)
    found: dict[str, PluginPackage] = {}
    for path in paths:
        single = (path / MANIFEST).is_file()
        directories = [path] if single else sorted(file.parent for file in path.glob(f"*/{MANIFEST}"))
        if not directories:
            raise ConfigError(
                "unknown_plugin",
                f"no {MANIFEST} in {path} nor in a directory of it",
                hint="name the directory of a plugin with --ageval-plugins",
            )
        for directory in directories:
            package = read_plugin(directory, names)
            other = found.get(package.plugin_id)
            if other is not None and other.root.resolve() != package.root.resolve():
                raise package.source.error(
                    "plugin_contract",
                    f"two plugins are called {package.plugin_id!r}; the other is {other.root}",
                    "/plugin_id",
                )
            found[package.plugin_id] = package
    return list(found.values())
