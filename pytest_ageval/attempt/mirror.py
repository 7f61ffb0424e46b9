"""A copy of the workspace on the host, for boxes that share no files with it.

run.py and evaluator.py run on the host and see ``workspace`` as a directory. Where the box has no
`host_path` that directory is a mirror: seeded before run.py starts, brought up to date after every
invoke, every ``scoring.exec``, and when the run phase is sealed. What the script changed in it is
uploaded before the next invoke or ``scoring.exec``, and before every refresh: on a path that both
sides changed, the script wins. Between these points the two sides do not see each other.

Left out of the mirror: special files, and symbolic links that lead out of the workspace (on the
host they would lead to the host's files). Modes of directories are not carried back to the box.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pytest_ageval.attempt.links import remove_outward_links
from pytest_ageval.box import WORKSPACE
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt

#: What is compared to find changes: kind, and for files and links mode, size, times, inode, target.
Entry = tuple[str | int, ...]
Index = Mapping[str, Entry]

# Says in few bytes whether anything below the current directory has changed; nothing where find
# cannot tell. Change times cannot be set by a program, so that equal answers mean equal files.
_STATE = (
    "find . -maxdepth 0 -printf x >/dev/null 2>&1 && "
    "find . -printf '%P\\0%y %m %s %T@ %C@ %l\\0' 2>/dev/null | cksum"
)

# Paths on one command line of rm.
_BATCH = 200


def mirror_of(attempt: Attempt) -> Mirror | None:
    """The attempt's mirror; None where box and host share the workspace."""
    if attempt.raw_box.host_path(WORKSPACE) is not None:
        return None
    if attempt.mirror is None:
        attempt.mirror = Mirror(attempt)
    return attempt.mirror


class Mirror:
    """The workspace of `attempt`, or another directory of its box, at `directory`."""

    def __init__(self, attempt: Attempt, of: str = WORKSPACE) -> None:
        self._attempt = attempt
        self._of = of
        self.directory = attempt.raw_box.spec.work_dir / f"host-{PurePosixPath(of).name}"
        self.directory.mkdir(parents=True, exist_ok=True)
        self._index: Index = {}
        self._state: str | None = None
        self._left_out: set[str] = set()
        self._lock = asyncio.Lock()

    async def push(self) -> None:
        """Carry what the script changed into the box. Raises BoxError."""
        async with self._lock:
            await self._push()

    async def pull(self) -> None:
        """Bring the mirror up to date with the box, after a `push`. Raises BoxError."""
        async with self._lock:
            await self._push()
            state = await self._ask_state()
            if state is not None and state == self._state:
                return
            fresh = self.directory.with_name(f"{self.directory.name}.new")
            try:
                await self._attempt.raw_box.download(self._of, fresh)
            except BoxError as error:
                if error.title != "environment_download_missing":
                    raise
                fresh.mkdir()  # the agent removed its workspace
            left_out = await asyncio.to_thread(self._take, fresh)
            self._state = state
        if new := sorted(set(left_out) - self._left_out):
            self._left_out.update(new)
            self._attempt.fact("links_left_out_of_mirror", {"links": new[:50]})

    async def _push(self) -> None:
        now = await asyncio.to_thread(index, self.directory)
        box = self._attempt.raw_box
        gone = list(outermost(sorted(path for path in self._index if path not in now)))
        changed = sorted(path for path, entry in now.items() if self._index.get(path) != entry)
        if not gone and not changed:
            return
        self._state = None
        for start in range(0, len(gone), _BATCH):
            done = await box.exec(
                ["rm", "-rf", "--", *(f"./{path}" for path in gone[start : start + _BATCH])], cwd=self._of
            )
            if not done.ok:
                raise BoxError("environment_upload_failed", f"could not remove from the box: {done.stderr}")
        for path in outermost(changed):
            await box.upload(self.directory / path, f"{self._of}/{path}")
        self._index = now

    async def _ask_state(self) -> str | None:
        try:
            done = await self._attempt.raw_box.exec(["sh", "-c", _STATE], cwd=self._of)
        except BoxError as error:
            if error.title == "environment_exec_invalid":  # there is no workspace
                return None
            raise
        return done.stdout.strip() or None if done.ok else None

    def _take(self, fresh: Path) -> list[str]:
        """Make the mirror what `fresh` is, except where the script has changed it meanwhile."""
        loosen(fresh)
        left_out = remove_outward_links(fresh)
        theirs, now = index(fresh), index(self.directory)
        ours = {path for path in {*now, *self._index} if now.get(path) != self._index.get(path)}
        for path in sorted(now, reverse=True):
            if path not in theirs and not any(mine == path or mine.startswith(f"{path}/") for mine in ours):
                discard(self.directory / path)
        for path in sorted(theirs):
            if path not in ours:
                self._place(fresh / path, self.directory / path)
        shutil.rmtree(fresh)
        after = dict(index(self.directory))
        for path in ours:
            after.pop(path, None)
            if path in self._index:
                after[path] = self._index[path]
        self._index = after
        return left_out

    @staticmethod
    def _place(source: Path, dest: Path) -> None:
        if not dest.parent.is_dir():
            return  # the script removed it meanwhile
        if source.is_dir() and not source.is_symlink():
            if not dest.is_dir() or dest.is_symlink():
                discard(dest)
                dest.mkdir()
            dest.chmod(stat.S_IMODE(source.stat().st_mode))
            return
        if dest.is_dir() and not dest.is_symlink():
            discard(dest)
        source.replace(dest)


def index(root: Path) -> Index:
    """Everything below `root`, by its path relative to it."""
    return dict(_entries(root, ""))


def _entries(directory: Path | str, prefix: str) -> Iterator[tuple[str, Entry]]:
    with os.scandir(directory) as found:
        entries = list(found)
    for entry in entries:
        path = prefix + entry.name
        info = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            yield path, ("directory",)
            yield from _entries(entry.path, f"{path}/")
        elif stat.S_ISLNK(info.st_mode):
            yield path, ("link", os.readlink(entry.path))  # noqa: PTH115 - the entry has no Path
        elif stat.S_ISREG(info.st_mode):
            # The change time tells what a restored modification time would hide.
            times = (info.st_mtime_ns, info.st_ctime_ns)
            yield path, ("file", stat.S_IMODE(info.st_mode), info.st_size, *times)


def outermost(paths: Iterable[str]) -> Iterator[str]:
    """Of sorted `paths`, those that no other one contains."""
    kept: set[str] = set()
    for path in paths:
        if not any(str(parent) in kept for parent in PurePosixPath(path).parents):
            kept.add(path)
            yield path


def loosen(root: Path) -> None:
    """Let ourselves into every directory below `root`."""
    root.chmod(root.stat().st_mode | 0o700)
    for directory, names, _files in os.walk(root):
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o700)


def discard(path: Path) -> None:
    """Remove whatever is at `path`, if anything is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
