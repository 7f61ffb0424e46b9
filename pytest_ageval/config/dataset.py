"""The data set root: ``ageval.yaml`` and what lies beside it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_ageval.config.check import Source, check_format, convert
from pytest_ageval.config.formats import DATASET_FORMAT, Asset, DatasetFile, Provenance, plain
from pytest_ageval.config.hashing import digest_of, file_digest, tree_digest
from pytest_ageval.config.where import join_pointer
from pytest_ageval.config.yamlio import load_yaml
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST = "ageval.yaml"
PROFILES = "profiles.yaml"
HARBOR_TASK = "task.toml"

#: Keys of a task that are often written into the data set's file by mistake.
_TASK_KEYS = frozenset(
    {
        "task_id",
        "parameters",
        "agent_profiles",
        "environment",
        "requires",
        "limits",
        "artifacts",
        "evaluation",
    }
)

_SHARED_SECONDS = 1.0

Signature = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set as its root describes it. `tasks_root` is absolute; `rootdir` is pytest's."""

    root: Path
    dataset_id: str
    version: str
    tasks_root: Path
    description: str | None = None
    max_concurrent_tasks: int | None = None
    provenance: Mapping[str, Any] | None = None
    assets: tuple[Asset, ...] = ()
    prepare: str | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict)
    rootdir: Path | None = None
    _memo: list[tuple[float, str]] = field(default_factory=list, compare=False, repr=False)

    @property
    def env_files(self) -> tuple[Path, ...]:
        """Where credentials may be written down: ``.env`` of the root, then of pytest's rootdir."""
        places = [self.root]
        if self.rootdir is not None and self.rootdir != self.root:
            places.append(self.rootdir)
        return tuple(place / ".env" for place in places)

    @property
    def shared_digest(self) -> str:
        """The digest of what every task can see: the manifest without its description, and ``shared/``.

        ``shared/`` is walked at most once in `_SHARED_SECONDS`, however many tasks are locked.
        """
        now = time.monotonic()
        if not self._memo or now - self._memo[0][0] > _SHARED_SECONDS:
            shared = self.root / "shared"
            digest = digest_of(
                {
                    "manifest": {k: v for k, v in self.manifest.items() if k != "description"},
                    "shared": tree_digest(shared) if shared.is_dir() else None,
                }
            )
            self._memo[:] = [(now, digest)]
        return self._memo[0][1]

    def task_ids(self) -> list[str]:
        """The names of the directories of ``tasks/`` that hold a ``task.yaml``, sorted."""
        if not self.tasks_root.is_dir():
            raise ConfigError(
                "invalid_package",
                f"the tasks directory is missing: {self.tasks_root.name}/",
                file=Source(self.root / MANIFEST).shown,
                pointer="/tasks/root",
            )
        return sorted(
            entry.name
            for entry in self.tasks_root.iterdir()
            if not entry.name.startswith(".") and (entry / "task.yaml").is_file()
        )

    def check_ready(self) -> None:
        """ConfigError unless the declared assets are there and the prepare script has run."""
        source = Source(self.root / MANIFEST)
        for index, asset in enumerate(self.assets):
            path, pointer = self.root / asset.path, join_pointer("assets", index)
            if not path.is_file():
                raise source.error(
                    "asset_missing",
                    f"the asset {asset.path} is not there",
                    pointer,
                    f"get it from {asset.url}",
                )
            if (found := file_digest(path).removeprefix("sha256:")) != asset.sha256:
                raise source.error(
                    "asset_digest_mismatch",
                    f"the asset {asset.path} has sha256 {found}, declared is {asset.sha256}",
                    pointer,
                )
        if self.prepare is not None and not (self.root / ".ageval-prepare.json").is_file():
            raise source.error(
                "prepare_not_allowed",
                f"the data set must be prepared first and {self.prepare} is not run without being asked",
                "/prepare",
                f"read the script, then run 'pytest-ageval prepare {Source(self.root).shown}'",
            )


_datasets: dict[tuple[Path, Path | None], tuple[Signature, Dataset]] = {}


def find_dataset_root(path: Path) -> Path | None:
    """The closest directory at or above `path` that holds ``ageval.yaml``; None when there is none.

    Of a task in Harbor's format: the directory above it (see `harbor_root`).
    """
    if path.name == HARBOR_TASK or (path / HARBOR_TASK).is_file():
        from pytest_ageval.config.harbor import harbor_root

        return harbor_root(path if path.is_dir() else path.parent)
    start = path if path.is_dir() else path.parent
    for place in (start, *start.absolute().parents):
        if (place / MANIFEST).is_file():
            return place
    return None


def load_dataset(root: Path, rootdir: Path | None = None) -> Dataset:
    """The data set at `root`. Cached while ``ageval.yaml`` does not change.

    Raises ConfigError: ``invalid_package`` when there is no manifest, else what is wrong in it.
    """
    path = root / MANIFEST
    signature = signature_of(path)
    if signature is None and _holds_harbor_tasks(root):
        from pytest_ageval.config.harbor import harbor_dataset

        return harbor_dataset(root, rootdir)
    if signature is None:
        raise ConfigError(
            "invalid_package",
            f"there is no {MANIFEST}",
            file=Source(root).shown,
            hint=f"a data set is a directory with {MANIFEST} and tasks/<task_id>/task.yaml",
        )
    key = (root.absolute(), rootdir)
    cached = _datasets.get(key)
    if cached is None or cached[0] != signature:
        cached = _datasets[key] = (signature, _read(root, path, rootdir))
    return cached[1]


def _holds_harbor_tasks(root: Path) -> bool:
    return (root / "dataset.toml").is_file() or next(root.glob(f"*/{HARBOR_TASK}"), None) is not None


def signature_of(path: Path) -> Signature | None:
    """(mtime, size, inode) of a file, by which a cached reading stays valid; None when it is not there."""
    try:
        status = os.stat(path)  # noqa: PTH116 - of ten thousand files the detour is seen
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(root: Path, path: Path, rootdir: Path | None) -> Dataset:
    source = Source(path)
    data = load_yaml(path)
    check_format(data, DATASET_FORMAT, source)
    for key in sorted(_TASK_KEYS & data.keys()):
        raise source.error("invalid_schema", f"{key!r} belongs in task.yaml, not in {MANIFEST}", f"/{key}")
    _refuse_interpolation(data, source, ())
    file = convert(data, DatasetFile, source)
    if ".." in file.dataset_id or "//" in file.dataset_id:
        raise source.error("invalid_schema", "dataset_id must not contain '..' or '//'", "/dataset_id")
    tasks_root = package_path(file.tasks.root if file.tasks else "tasks", source, "/tasks/root")
    assets = file.assets or []
    for index, asset in enumerate(assets):
        package_path(asset.path, source, join_pointer("assets", index, "path"))
    if file.prepare is not None:
        package_path(file.prepare, source, "/prepare")
    return Dataset(
        root=root,
        dataset_id=file.dataset_id,
        version=file.version.strip(),
        tasks_root=root / tasks_root,
        description=file.description,
        max_concurrent_tasks=file.defaults.max_concurrent_tasks if file.defaults else None,
        provenance=check_provenance(file.provenance, source),
        assets=tuple(assets),
        prepare=file.prepare,
        manifest=data,
        rootdir=rootdir,
    )


def _refuse_interpolation(value: Any, source: Source, tokens: tuple[object, ...]) -> None:
    """Nothing in the manifest is expanded, so text that looks so is a misunderstanding."""
    if isinstance(value, str) and "${" in value and tokens != ("description",):
        raise source.error(
            "invalid_schema", f"variables are not expanded in {MANIFEST}", join_pointer(*tokens)
        )
    rows = dict(enumerate(value)) if isinstance(value, list) else value
    for key, item in rows.items() if isinstance(rows, dict) else ():
        _refuse_interpolation(item, source, (*tokens, key))


def package_path(text: str, source: Source, pointer: str) -> str:
    """`text` as a normal relative path; ConfigError ``path_outside_package`` when it leads out."""
    normal = text.strip().replace("\\", "/")
    path = PurePosixPath(normal)
    if not normal or path.is_absolute() or ".." in path.parts or "\0" in normal or normal[0] == "~":
        raise source.error(
            "path_outside_package",
            f"must be a relative path that stays inside the package; found {text!r}",
            pointer,
        )
    return str(path)


def check_provenance(found: Provenance | None, source: Source) -> Mapping[str, Any] | None:
    """`found` as plain data; a port must say what it is a port of."""
    if found is None:
        return None
    upstream = found.upstream
    if found.kind != "original":
        if upstream is None or upstream.url is None:
            raise source.error(
                "invalid_schema",
                f"provenance.upstream.url is required with kind {found.kind}",
                "/provenance",
            )
        if upstream.ref is None and upstream.commit is None:
            raise source.error(
                "invalid_schema",
                f"provenance.upstream.ref or .commit is required with kind {found.kind}",
                "/provenance/upstream",
            )
    result: Mapping[str, Any] = plain(found)
    return result
