"""``profiles.yaml``: which kind of box, and who plays which role when the command line does not say."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval.config.check import Source, check_format, convert
from pytest_ageval.config.dataset import PROFILES, Dataset, Signature, package_path, signature_of
from pytest_ageval.config.env import check_base_url, locator
from pytest_ageval.config.formats import PROFILES_FORMAT, ProfileRow, ProfilesFile, plain
from pytest_ageval.config.where import join_pointer, listed
from pytest_ageval.config.yamlio import load_yaml
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_BOX = "docker"
WILDCARD = "*"

#: What a scoring box may be told; its recipe is part of the task.
_SCORING_OPTIONS = frozenset(("network", "egress", "egress_allow", "platform", "user", "python_version"))


@dataclass(frozen=True, slots=True)
class Profiles:
    """A parsed ``profiles.yaml``; `path` is None when the data set has none. Rows are plain data."""

    path: Path | None
    environment: str = DEFAULT_BOX
    environment_options: Mapping[str, Any] = field(default_factory=dict)
    evaluate_host: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        """For error messages."""
        return Source(self.path, PROFILES)

    def row_for(self, role: str) -> tuple[str, Mapping[str, Any]] | None:
        """The name and the row that binds `role`: its own, else the wildcard's."""
        for name in (role, WILDCARD):
            if name in self.rows:
                return name, self.rows[name]
        return None


_profiles: dict[Path, tuple[Signature, Profiles]] = {}


def load_profiles(dataset: Dataset, given: str | None = None) -> Profiles:
    """The file `given` (relative to the current directory), else the data set's own, else the defaults."""
    path = Path(given).expanduser() if given is not None else dataset.root / PROFILES
    signature = signature_of(path)
    if signature is None:
        if given is None:
            return Profiles(None)
        raise ConfigError("invalid_option", f"--profiles: there is no file {given}")
    cached = _profiles.get(path.absolute())
    if cached is None or cached[0] != signature:
        cached = _profiles[path.absolute()] = (signature, _read(path))
    return cached[1]


def _read(path: Path) -> Profiles:
    source = Source(path)
    data = load_yaml(path)
    check_format(data, PROFILES_FORMAT, source)
    file = _convert(data, source)
    for name, row in file.agent_profiles.items():
        check_row(row, source, join_pointer("agent_profiles", name))
    host = plain(file.evaluate_host) if file.evaluate_host is not None else {}
    if unknown := host.get("environment_options", {}).keys() - _SCORING_OPTIONS:
        raise source.error(
            "invalid_schema",
            f"unknown option {min(unknown)!r} of a scoring box; known: {listed(_SCORING_OPTIONS)}",
            join_pointer("evaluate_host", "environment_options", min(unknown)),
        )
    return Profiles(
        path=path,
        environment=file.environment.strip(),
        environment_options=file.environment_options or {},
        evaluate_host=host,
        rows={name: plain(row) for name, row in file.agent_profiles.items()},
    )


def _convert(data: Any, source: Source) -> ProfilesFile:
    try:
        return convert(data, ProfilesFile, source)
    except ConfigError as error:
        raise model_error(error) from None


def model_error(error: ConfigError) -> ConfigError:
    """`error` with the code ``model_config`` when it is about a model."""
    tokens = (error.pointer or "").split("/")
    if "model" not in tokens[1:4] or error.code != "invalid_schema":
        return error
    hint = error.hint
    if tokens[-1] == "model":
        hint = "write a mapping: model: {id: NAME}"
    return ConfigError(
        "model_config", error.message, file=error.file, pointer=error.pointer, line=error.line, hint=hint
    )  # fmt: skip


def check_row(row: ProfileRow, source: Source, at: str, *, needs_model_id: bool = True) -> None:
    """The rules of one profile that its type cannot say.

    A package may leave the model's id to ``--model``; a profile that speaks of a model names it.
    """
    if row.api_key is not None:
        locator(row.api_key, source, f"{at}/api_key")
    if row.base_url is not None:
        check_base_url(row.base_url, source, f"{at}/base_url")
    if needs_model_id and row.model is not None and row.model.id is None:
        raise source.error("model_config", "model.id is missing", f"{at}/model")
    for index, overlay in enumerate(row.overlays or ()):
        pointer = f"{at}/overlays/{index}"
        if not package_path(overlay, source, pointer).startswith("overlays/"):
            raise source.error(
                "path_outside_package", f"must lie under overlays/; found {overlay!r}", pointer
            )
