"""Symbolic links that an agent may plant to have somebody else read (or delete) a file for it.

The agent is contained in its box; the scripts that look at its work are not. So before any of them looks,
every link that does not stay in the agent's own directories or lead to the system's programs is removed.
A link is judged twice: as a process of the host would follow it, and as one in the box would.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pytest_ageval.trees import entries

#: Where a link may lead besides the agent's directories: programs and their libraries (a virtual
#: environment's python, a package manager's links).
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix")

#: What leads anywhere: another process's root or working directory, an open file.
MAGIC = ("/proc", "/dev", "/sys", "/run", "/tmp", "/var/tmp")  # noqa: S108

#: Links on one way, as the kernel counts them.
HOPS = 40

#: From a path as its process spells it to where it is on this host; None: nowhere.
View = Callable[[str], str | None]


def walk_links(root: Path) -> Iterator[Path]:
    """Every symbolic link below `root`, none of them followed; nothing when `root` is one itself."""
    return (Path(entry.path) for entry in entries(root) if entry.is_symlink())


def system_directories() -> tuple[str, ...]:
    """`SYSTEM`, and where the running Python is."""
    own = {sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)}
    return (*SYSTEM, *sorted(own))


def follow(start: str, text: str, view: View, own: Sequence[str]) -> str | None:
    """Where a link in directory `start` that says `text` leads; None when that cannot be trusted.

    Goes as the kernel does, component by component: ``..`` is taken after the link before it was
    followed. Paths are as `view` takes them.
    """
    stack = [] if text.startswith("/") else [part for part in start.split("/") if part not in ("", ".")]
    waiting = text.split("/")[::-1]
    hops = 0
    while waiting:
        part = waiting.pop()
        if part in ("", "."):
            continue
        if part == "..":
            stack = stack[:-1]
            continue
        stack.append(part)
        here = "/" + "/".join(stack)
        if _below(here, MAGIC) and not _on_the_way(here, own):
            return None
        host = view(here)
        try:
            target = None if host is None else os.fsdecode(os.readlink(host))  # noqa: PTH115 - the text
        except OSError:  # no link, or nothing there
            target = None
        if target is not None:
            hops += 1
            if hops > HOPS:
                return None
            stack = [] if target.startswith("/") else stack[:-1]
            waiting.extend(target.split("/")[::-1])
    return "/" + "/".join(stack)


def remove_escaping_links(root: Path, views: Sequence[tuple[str, View, Sequence[str]]]) -> list[str]:
    """Unlink what does not stay inside; say which, relative to `root`.

    Each view is ``(root as it spells it, view, the agent's directories as it spells them)``.
    """
    allowed = system_directories()

    def leads_out(link: Path) -> bool:
        text = os.fsdecode(os.readlink(link))  # noqa: PTH115 - what it says, not where it leads
        inside = link.parent.relative_to(root).as_posix()
        for spelled, view, own in views:
            found = follow(f"{spelled}/{inside}", text, view, own)
            if found is None or not _below(found, (*own, *allowed)):
                return True
        return False

    return _unlink(root, leads_out)


def remove_outward_links(root: Path) -> list[str]:
    """Unlink what leads out of `root` at all; say which, relative to `root`."""
    real = os.path.realpath(root)

    def leads_out(link: Path) -> bool:
        text = os.fsdecode(os.readlink(link))  # noqa: PTH115
        parent = link.parent.relative_to(root).as_posix()
        found = follow(f"{real}/{parent}", text, lambda path: path, (real,))
        return found is None or not _below(found, (real,))

    return _unlink(root, leads_out)


def _unlink(root: Path, leads_out: Callable[[Path], bool]) -> list[str]:
    found = [path for path in walk_links(root) if leads_out(path)]
    for path in found:
        path.unlink()
    return [os.fsencode(path.relative_to(root)).decode("utf-8", "backslashreplace") for path in found]


def _below(path: str, directories: Sequence[str]) -> bool:
    return any(path == d or path.startswith(d.rstrip("/") + "/") for d in directories)


def _on_the_way(path: str, directories: Sequence[str]) -> bool:
    """`path` is one of `directories`, in one, or above one."""
    return _below(path, directories) or any(_below(d, (path,)) for d in directories)


def identity(path: Path) -> tuple[int, int] | None:
    """Which directory `path` is, or None when it is not a directory (a link to one is not)."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None
