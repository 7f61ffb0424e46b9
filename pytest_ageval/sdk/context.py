"""What ``run(ctx)`` gets: parameters, directories, the agent, and where to put its work."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Literal

from pytest_ageval.sdk import _channel
from pytest_ageval.sdk.agent import Agent

_MISSING = object()


@dataclass(frozen=True, slots=True)
class RunScope:
    """Which attempt this is. `deadline_monotonic` is on the clock of ``time.monotonic()``, or None."""

    attempt_id: str
    trial_id: str = ""
    run_id: str = ""
    deadline_monotonic: float | None = None


class RunParameterView:
    """The task's ``parameters``, to read. A path has dots: ``params["user.model"]``."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = MappingProxyType(dict(data))

    def get(self, path: str, default: Any = None) -> Any:
        """The value at `path`, or `default`."""
        found: Any = self._data
        for part in path.split("."):
            if not isinstance(found, Mapping) or part not in found:
                return default
            found = found[part]
        return found

    def require_int(self, path: str) -> int:
        """The integer at `path`. Raises KeyError when there is none."""
        value = self.get(path)
        if not isinstance(value, int) or isinstance(value, bool):
            raise KeyError(path)
        return value

    def require_str(self, path: str) -> str:
        """The text at `path`. Raises KeyError when there is none."""
        value = self.get(path)
        if not isinstance(value, str):
            raise KeyError(path)
        return value

    def as_mapping(self) -> Mapping[str, Any]:
        """All of it, read-only."""
        return self._data

    def __getitem__(self, path: str) -> Any:
        value = self.get(path, _MISSING)
        if value is _MISSING:
            raise KeyError(path)
        return value

    def __contains__(self, path: str) -> bool:
        return self.get(path, _MISSING) is not _MISSING

    def __repr__(self) -> str:
        return f"RunParameterView({dict(self._data)!r})"


@dataclass
class RunContext:
    """The one argument of ``run(ctx)``.

    `workspace_root` is the box's workspace as the host sees it, and the current directory;
    `artifact_dir` is where published artifacts lie; `task_root` and `dataset_root` are the task's and
    the data set's directories (they hold gold: never hand them to an agent).
    """

    params: RunParameterView
    scope: RunScope
    workspace_root: Path
    artifact_dir: Path
    dataset_root: Path | None = None
    task_root: Path | None = None
    agent: Agent = field(default_factory=lambda: Agent(""))
    _closed: bool = field(default=False, repr=False)
    _published: dict[str, Path] = field(default_factory=dict, repr=False)
    _real_workspace: Path = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Now, before an agent could put a link in the place of its workspace.
        self._real_workspace = self.workspace_root.resolve()

    def close(self) -> None:
        """End the run: nothing can be published any more."""
        self._closed = True

    @property
    def is_closed(self) -> bool:
        """The run has ended."""
        return self._closed

    @property
    def published(self) -> Mapping[str, Path]:
        """What was published, by id, in the order in which it was."""
        return MappingProxyType(self._published)

    def publish_json(self, artifact_id: str, data: Any) -> Path:
        """Write `data` to ``<artifact_dir>/<artifact_id>.json`` (sorted keys, no spaces).

        The file appears whole or not at all. Publishing an id again replaces it. Raises ValueError
        for an id that is not a plain file name or whose file another id has published, TypeError for
        data that is not JSON, RuntimeError when the run has ended.
        """
        target = self._target(artifact_id, f"{artifact_id}.json")
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        try:
            body = text.encode("utf-8")
        except UnicodeEncodeError:
            # Lone surrogates have no UTF-8; as \\uXXXX they are JSON that everyone reads.
            body = json.dumps(data, sort_keys=True, separators=(",", ":")).encode("ascii")
        with _replacing(target) as file:
            file.write(body + b"\n")
        return self._publish(artifact_id, "json", target)

    def publish_file(self, artifact_id: str, source: str | os.PathLike[str]) -> Path:
        """Copy `source` to ``<artifact_dir>/<name of source>``.

        A file of the workspace must really be there: a symbolic link that leads out of it raises
        PermissionError, because an agent may have made it. Raises OSError when `source` is not a
        readable regular file, and else as `publish_json`.
        """
        path = self.workspace_root / source
        target = self._target(artifact_id, path.name)
        with self._reading(path) as original, _replacing(target) as copy:
            shutil.copyfileobj(original, copy, 1024 * 1024)
        return self._publish(artifact_id, "file", target)

    def publish_tree(self, artifact_id: str, source: str | os.PathLike[str]) -> Path:
        """Declare a directory; it is copied (without what the task excludes) after the run.

        Raises ValueError for an id that is not a plain file name, RuntimeError when the run has ended.
        """
        self._target(artifact_id, artifact_id)
        return self._publish(artifact_id, "tree", self.workspace_root / source)

    def _target(self, artifact_id: str, name: str) -> Path:
        if self._closed:
            raise RuntimeError("context closed")
        for part in (artifact_id, name):
            _check_component(part)
        target = self.artifact_dir / name
        for other, path in self._published.items():
            if other != artifact_id and path == target:
                raise ValueError(f"{name!r} was already published as {other!r}")
        return target

    def _publish(self, artifact_id: str, kind: Literal["json", "file", "tree"], path: Path) -> Path:
        self._published[artifact_id] = path
        _channel.note("publish", {"id": artifact_id, "kind": kind, "path": str(path)})
        return path

    @contextmanager
    def _reading(self, path: Path) -> Iterator[BinaryIO]:
        # Looked at after opening: an agent that still runs could change a link in between. Without
        # O_NONBLOCK the opening of a FIFO would never return.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(f"{path} is not a regular file")
            real = Path(f"/proc/self/fd/{handle}").readlink()
            lexical = Path(os.path.normpath(path))
            inside = lexical.is_relative_to(self.workspace_root)
            if inside and not real.is_relative_to(self._real_workspace):
                raise PermissionError(f"{path} leads out of the workspace, to {real}")
            yield file


def _check_component(name: str) -> None:
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"an artifact id must be a plain file name, not {name!r}")


@contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    """A new file that takes `target`'s place when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
