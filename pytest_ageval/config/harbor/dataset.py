"""The directory above Harbor tasks as a data set."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_ageval.config.dataset import Dataset, signature_of
from pytest_ageval.config.harbor.toml import TomlSource, load_toml

#: A list of tasks that Harbor makes of a data set.
DATASET_TOML = "dataset.toml"


def harbor_root(task: Path) -> Path:
    """The data set of the task directory `task`: the closest above with a dataset.toml, else its parent."""
    for place in task.absolute().parents:
        if (place / DATASET_TOML).is_file():
            return place
        if (place / ".git").exists():
            break
    return task.parent


def harbor_dataset(root: Path, rootdir: Path | None = None) -> Dataset:
    """The data set at `root`: name and version of its dataset.toml, else the directory's name.

    Raises ConfigError for a dataset.toml that cannot be read.
    """
    return _dataset(root, rootdir, signature_of(root / DATASET_TOML))


@lru_cache(maxsize=256)
def _dataset(root: Path, rootdir: Path | None, signature: Any) -> Dataset:
    table: dict[str, Any] = {}
    if signature is not None:
        found = load_toml(root / DATASET_TOML).get("dataset", {})
        if not isinstance(found, dict):
            raise TomlSource(root / DATASET_TOML).error("invalid_schema", "must be a table", "/dataset")
        table = found
    name = str(table.get("name") or root.absolute().name).lower()
    return Dataset(
        root=root,
        dataset_id=re.sub(r"[^a-z0-9._/-]+", "-", name).strip("-/._") or "harbor",
        version=str(table.get("version") or "0"),
        tasks_root=root,
        description=table.get("description") if isinstance(table.get("description"), str) else None,
        rootdir=rootdir,
    )
