"""Builds for the servers that stand in for vendors' clouds: their steps really run, in a jail."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jail import USERS, Jail


class BuildFailed(Exception):
    """A step could not be done; the text is what it said."""


@dataclass
class Image:
    """What a build made: files, environment, user. Without files: an empty machine."""

    root: Path | None = None
    env: dict[str, str] = field(default_factory=dict)
    user: str | None = None


class Builder:
    """One build on top of `base`."""

    def __init__(self, base: Image) -> None:
        self.jail = Jail(Path(tempfile.mkdtemp(prefix="image-build-")), base.root)
        self.env = dict(base.env)
        self.user = base.user or "root"
        self.workdir = "/"

    def run(self, command: str, user: str | None = None) -> list[str]:
        """RUN: a shell command; the lines it said."""
        who = user or self.user
        if who not in USERS:
            raise BuildFailed(f"no such user: {who}")
        process = self.jail.start(
            ["sh", "-c", command], cwd=self.workdir, env=self.env, user=who, stdin=False
        )
        out, err = process.communicate(timeout=60)
        lines = (out + err).decode("utf-8", "replace").splitlines()
        if process.returncode != 0:
            raise BuildFailed(f"'{command}' ended with exit code {process.returncode}: {' '.join(lines)}")
        return lines

    def enter(self, directory: str) -> None:
        """WORKDIR: a directory, made if it is not there."""
        self.workdir = os.path.join(self.workdir, directory)
        self.jail.path(self.workdir).mkdir(parents=True, exist_ok=True) if self.workdir != "/" else None

    def copy(
        self, context: Path, sources: Sequence[str], dest: str, owner: str = "", mode: int | None = None
    ) -> None:
        """COPY: as Docker has it. Of a directory, what is in it."""
        target = self.jail.path(os.path.join(self.workdir, dest))
        found = [path for source in sources for path in self._matching(context, source)]
        for path in found:
            into = target
            if path.is_dir() and not path.is_symlink():
                into.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cp", "-rP", "--preserve=mode", f"{path}/.", str(into)], check=True)
            else:
                if dest.endswith("/") or into.is_dir() or len(found) > 1:
                    into = target / path.name
                into.parent.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cp", "-P", "--preserve=mode", str(path), str(into)], check=True)
            if mode is not None:
                into.chmod(mode)
            if owner:
                self.jail.owns(into, owner.partition(":")[0])

    @staticmethod
    def _matching(context: Path, source: str) -> list[Path]:
        name = os.path.normpath(source.lstrip("/") or ".")
        found = [context] if name == "." else sorted(context.glob(name))
        if not found:
            raise BuildFailed(f'"/{source}": not found')
        return found

    def finish(self, directory: Path, user: str | None) -> Image:
        """The image, with its files in `directory`."""
        subprocess.run(["cp", "-a", str(self.jail.root), str(directory)], check=True)
        self.abandon()
        return Image(directory, self.env, user)

    def abandon(self) -> None:
        """Remove what there is."""
        self.jail.destroy()


def unpack(archives: Sequence[Path]) -> Path:
    """The directory with the contents of tar files, whatever their compression."""
    directory = Path(tempfile.mkdtemp(prefix="image-context-"))
    for archive in archives:
        with tarfile.open(archive) as tar:
            tar.extractall(directory, filter="tar")
    return directory


def forget(directory: Path) -> None:
    """Remove a directory."""
    shutil.rmtree(directory, ignore_errors=True)
