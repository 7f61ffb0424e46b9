"""The other end of an ssh box: a directory of the host or a container on it.

Everything here blocks and is meant for threads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ageval_boxes._processes import COOKIE
from ageval_boxes._ssh_connection import Done, Host
from ageval_boxes._ssh_leftovers import Note, cookie, root_name
from ageval_boxes._ssh_scripts import (
    DOCKER,
    IMAGE,
    LOOK,
    MISSING,
    RESUME,
    RESUME_INSIDE,
    START,
    START_INSIDE,
    UNUSABLE,
)
from pytest_ageval.box import ROOT
from pytest_ageval.errors import BoxError

#: Seconds in which an image must have been pulled.
PULL_SECONDS = 1800.0

#: Where a container sees the host's cache directory.
CACHE = "/ageval-cache"

#: How docker is told of what a task asks for.
LIMITS = {"cpus": "--cpus={}", "memory_mb": "--memory={}m", "pids": "--pids-limit={}"}


@dataclass(frozen=True, slots=True)
class Place:
    """An open box on a host: what is its ``/attempt``, where copies are prepared, temporary files, PATH.

    `root` is its directory on the host, or the name of its container. `cache` is what outlives it.
    """

    at: Host
    root: str
    box: str
    staging: str
    tmp: str
    path: str
    container: str | None = None
    cache: str | None = None

    def inside(self, path: str) -> str:
        """`path` (below ``/attempt``) as a process in the box spells it."""
        return str(PurePosixPath(self.box, *PurePosixPath(path).parts[2:]))

    def run(self, script: str, *args: str, **options: Any) -> Done:
        """Run one of our scripts where the processes of the box are; see `Host.run`."""
        return self.at.run(script, *args, container=self.container, **options)

    def names(self, path: PurePosixPath) -> tuple[str, str]:
        """The parent directory and the name of a path of the box, for the scripts."""
        if len(path.parts) == 2:
            return "..", PurePosixPath(self.box).name
        return str(PurePosixPath(".", *path.parts[2:-1])), path.name


# -- opening ---------------------------------------------------------------------------------------

_STAGING, _TMP = "/var/tmp/ageval-staging", "/tmp"  # noqa: S108 - the container's own


def open_directory(at: Host, note: Note, *, cache: bool, again: bool = False) -> Place:
    """Make the directories of a box on the host, or find them `again`. Raises BoxError."""
    marker = json.dumps({name: value for name, value in note.data.items() if name != "address"})
    script = RESUME if again else START
    parent, name = str(note.data["parent"]), root_name(note.box_id)
    done = at.run(script, parent, name, marker, "cache" if cache else "")
    _refuse(at, done)
    root, path, kept = done.stdout.removesuffix("\n").rsplit("\n", 2)
    tmp = f"{root}/tmp"  # noqa: S108 - the box's own
    return Place(at, root, f"{root}/box", f"{root}/staging", tmp, path, cache=kept or None)


def open_container(
    at: Host,
    note: Note,
    image: str,
    labels: Mapping[str, str],
    resources: Mapping[str, Any],
    *,
    cache: bool,
) -> Place:
    """Start a container of `image`, which docker pulls if need be. Raises BoxError."""
    name = root_name(note.box_id)
    found = at.run(IMAGE, image, "cache" if cache else "", timeout=PULL_SECONDS)
    _refuse(at, found)
    identity, kept = found.stdout.removesuffix("\n").split("\n")
    words = ["run", "-d", "--init", "--name", name, "--security-opt", "no-new-privileges"]
    for label, value in {**labels, "ageval.box": note.box_id}.items():
        words += ["--label", f"{label}={value}"]
    words += [LIMITS[key].format(value) for key, value in resources.items() if key in LIMITS]
    if kept:
        words += ["--mount", f"type=bind,source={kept},target={CACHE}"]
    words += ["--entrypoint", "tail", identity, "-f", "/dev/null"]
    _refuse(at, at.run(DOCKER, *words, timeout=PULL_SECONDS))
    note.write(cache=bool(kept))
    done = at.run(START_INSIDE, _STAGING, container=name)
    _refuse(at, done)
    return _container(at, name, done, cache=bool(kept))


def find_container(at: Host, note: Note) -> Place:
    """The running or stopped container of a box again. Raises BoxError."""
    name = root_name(note.box_id)
    started = at.run(DOCKER, "start", name)
    if "No such container" in started.stderr:
        raise BoxError("environment_attach_invalid", f"there is no container {name} on {at.address}")
    _refuse(at, started)
    done = at.run(RESUME_INSIDE, _STAGING, container=name)
    _refuse(at, done)
    return _container(at, name, done, cache=bool(note.data.get("cache")))


def _container(at: Host, name: str, done: Done, *, cache: bool) -> Place:
    path = done.stdout.strip()
    return Place(at, name, ROOT, _STAGING, _TMP, path, name, CACHE if cache else None)


def look(at: Host, note: Note) -> list[str] | None:
    """The processes that run in a box; None: it is gone. Raises BoxError."""
    name = root_name(note.box_id)
    needle = f"{COOKIE}={cookie(note.box_id)}"
    if not note.data.get("container"):
        done = at.run(LOOK, needle, str(note.data.get("parent") or ""), name)
    else:
        state = at.run(DOCKER, "inspect", "-f", "{{.State.Running}}", name)
        if "No such" in state.stderr:
            return None
        _refuse(at, state)
        if state.stdout.strip() != "true":
            return []
        done = at.run(LOOK, needle, "-", name, container=name)
    if done.code == MISSING:
        return None
    _refuse(at, done)
    return done.stdout.splitlines()


def _refuse(at: Host, done: Done) -> None:
    if done.code != 0:
        title = {
            UNUSABLE: "environment_preflight_failed",
            MISSING: "environment_attach_invalid",
        }.get(done.code, "environment_start_failed")
        said = done.stderr.strip()[-500:] or ("the box is gone" if done.code == MISSING else done.code)
        raise BoxError(title, f"{at.address}: {said}")
