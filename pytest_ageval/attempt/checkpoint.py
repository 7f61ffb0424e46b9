"""Keeping what the agent's directories hold, and bringing a box back to it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from pytest_ageval.attempt.equip import MAX_FILE
from pytest_ageval.attempt.mirror import Mirror, mirror_of
from pytest_ageval.box import WORKSPACE
from pytest_ageval.errors import BoxError
from pytest_ageval.evidence.checkpoints import Checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pytest_ageval.attempt.context import Attempt

#: The directories that are kept, by the names that they have in a checkpoint.
ROOTS = ("workspace", "home", "artifacts")

#: KiB of a directory that is fetched from a box on another machine after each turn.
REMOTE_LIMIT = 64 * 1024


async def keep(attempt: Attempt, *, step: bool = False) -> int | None:
    """Keep what the box holds now; the number of the checkpoint, or None when none are made.

    `step`: within a turn, which is not wanted for every box.
    """
    checkpoints = attempt.checkpoints
    if checkpoints is None or checkpoints.given_up is not None or attempt.locked.harbor is not None:
        return None
    if step and attempt.options.checkpoints != "step":
        return None
    async with attempt.keeping:
        directories = await _directories(attempt)
        logins = _logins(attempt)
        await asyncio.to_thread(_learn, attempt, directories, logins)
        at_least = attempt.evidence.activity.seq + 1
        found = await asyncio.to_thread(checkpoints.take, directories, at_least, logins)
    if found is None and checkpoints.given_up is not None:
        attempt.fact("checkpoints_given_up", {"reason": checkpoints.given_up})
    return found


def _logins(attempt: Attempt) -> set[str]:
    """Where login files may be, whether or not they were put there: an agent may write one."""
    return {f"home/{name}" for binding in attempt.locked.bindings.values() for name in binding.logins}


def _learn(attempt: Attempt, directories: Mapping[str, Path], logins: Iterable[str]) -> None:
    """Tell the redactor what login files hold now: an agent may renew its token, and write it elsewhere."""
    for login in logins:
        name = login.removeprefix("home/")
        home = directories.get("home")
        path = None if home is None else home / name
        if path is None or path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_FILE:
            continue
        with contextlib.suppress(OSError):
            attempt.redactor.add(path.name, path.read_text("utf-8", "replace"))


async def _directories(attempt: Attempt) -> dict[str, Path]:
    """Where the directories are on this machine, or copies of them that are brought up to date."""
    found: dict[str, Path] = {}
    for name in ROOTS:
        path = attempt.raw_box.host_path(f"/attempt/{name}")
        if path is None:
            mirror = await _mirror(attempt, name)
            if mirror is None:
                continue
            await mirror.pull()
            path = mirror.directory
        found[name] = path
    return found


async def _mirror(attempt: Attempt, name: str) -> Mirror | None:
    if name == "workspace":
        return mirror_of(attempt)
    if name not in attempt.copies:
        attempt.copies[name] = await _small_copy(attempt, name)
    return attempt.copies[name]


async def _small_copy(attempt: Attempt, name: str) -> Mirror | None:
    """A copy of a further directory of a box on another machine, if that is not too large."""
    path = attempt.raw_box.visible_path(f"/attempt/{name}")
    done = await attempt.raw_box.exec(["du", "-sk", path], cwd=WORKSPACE, timeout=60)
    size = done.stdout.split()[:1]
    if done.ok and size and size[0].isdigit() and int(size[0]) <= REMOTE_LIMIT:
        return Mirror(attempt, f"/attempt/{name}")
    attempt.fact("directory_not_in_checkpoints", {"directory": name, "kib": " ".join(size)})
    return None


async def go_to(attempt: Attempt, checkpoint: int | None, *, whole: bool = False) -> None:
    """Bring the box to the state of a checkpoint, if it is not past it already.

    `whole`: whatever it holds now; else only by what changed since the state that it has. Raises
    `AgevalError` ``checkpoint_corrupt`` and BoxError.
    """
    checkpoints = attempt.checkpoints
    if checkpoints is None or checkpoint is None or attempt.locked.harbor is not None:
        return
    if not whole and checkpoint <= checkpoints.position:
        return
    async with attempt.keeping:
        directories = await _directories(attempt)
        logins = _logins(attempt)
        try:
            touched = await asyncio.to_thread(
                checkpoints.restore, checkpoint, directories, whole=whole, keep=logins
            )
        except OSError as error:
            raise BoxError("environment_restore_failed", f"{error.filename}: {error.strerror}") from error
        for mirror in (attempt.mirror, *attempt.copies.values()):
            if mirror is not None:
                await mirror.push()
    attempt.fact("files_restored", {"checkpoint": checkpoint, "paths": touched})


def refuse_incomplete(attempt: Attempt, checkpoint: int) -> None:
    """Raise BoxError when a new box would lack a file that the agent had: it is in no checkpoint."""
    assert attempt.checkpoints is not None
    rows = {
        path: why
        for path, why in attempt.checkpoints.omitted(checkpoint).items()
        if not path.startswith("home/")
    }
    if rows:
        path, why = next(iter(rows.items()))
        raise BoxError(
            "resume_incomplete",
            f"the box is gone, and {path} is in no checkpoint ({why}); run this attempt anew",
        )


def checkpoints_of(attempt: Attempt) -> Checkpoints | None:
    """Where the attempt's checkpoints are; None when none are wanted."""
    if attempt.options.checkpoints == "off":
        return None
    return Checkpoints(attempt.evidence.layout.checkpoints, attempt.redactor)
