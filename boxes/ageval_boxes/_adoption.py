"""A local box of another process: what became of it, taking it over, ending it.

A box is known by its work directory and by the id in the directory's marker; both are in its handle.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ageval_boxes._leftovers import MARKER, in_box, kill_box, owner_lives, remove_directory
from ageval_boxes._processes import label
from pytest_ageval.box import ProbeStatus
from pytest_ageval.errors import BoxError


def refuse_other(handle: Mapping[str, Any], kind: str, *names: str) -> None:
    """Raise BoxError ``environment_attach_invalid`` unless `handle` is of `kind` and has all of `names`."""
    if handle.get("kind") != kind:
        raise BoxError(
            "environment_attach_invalid", f"the handle is of {handle.get('kind')!r}, not of {kind!r}"
        )
    missing = [name for name in names if not handle.get(name)]
    if missing:
        raise BoxError("environment_attach_invalid", f"the handle has no {', '.join(missing)}")


def lives(found: Mapping[str, Any]) -> str:
    """Who owns a box, if that process lives (it may be this one); else ""."""
    if owner_lives(found, ours=True):
        return f"its owner, process {found.get('pid')}, still runs"
    return ""


def busy(why: str) -> BoxError:
    """The refusal of a box that is in use."""
    return BoxError("environment_attach_busy", f"the box cannot be had: {why}")


def _marker(handle: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        found = json.loads((Path(handle["work_dir"]) / MARKER).read_bytes())
    except (OSError, ValueError):
        return None
    same = isinstance(found, dict) and found.get("kind") == handle["kind"] and found.get("id") == handle["id"]
    return found if same else None


def probe(handle: Mapping[str, Any], kind: str) -> ProbeStatus:
    """What became of the box of `handle`."""
    try:
        refuse_other(handle, kind, "id", "work_dir")
    except BoxError as error:
        return ProbeStatus("absent", error.message)
    found = _marker(handle)
    if found is None:
        return ProbeStatus("absent", f"{handle['work_dir']} is gone or holds another box")
    if why := lives(found):
        return ProbeStatus("busy", why)
    # None of them survives a new start of the machine, but a marker does.
    procs = in_box(str(handle["id"]))
    if procs:
        return ProbeStatus("busy", f"still running: {', '.join(label(proc.pid) for proc in procs[:5])}")
    return ProbeStatus("idle")


def take_over(handle: Mapping[str, Any], marker: Mapping[str, Any]) -> Path:
    """Put `marker` in place of the one of the box of `handle`; returns its work directory."""
    refuse_other(handle, str(marker["kind"]), "id", "work_dir")
    work = Path(handle["work_dir"])
    with _alone(work):
        status = probe(handle, str(marker["kind"]))
        if status.state == "absent":
            raise BoxError("environment_attach_invalid", status.detail)
        if status.state == "busy":
            raise busy(status.detail)
        new = work / f".{MARKER}.{os.getpid()}"
        new.write_text(json.dumps(marker), encoding="utf-8")
        new.replace(work / MARKER)
    return work


def discard(handle: Mapping[str, Any], kind: str) -> None:
    """Kill what runs in the box of `handle` and remove it; nothing when it is gone. Raises BoxError."""
    refuse_other(handle, kind, "id", "work_dir")
    work = Path(handle["work_dir"])
    if _marker(handle) is None:
        return
    with _alone(work):
        found = _marker(handle)
        if found is None:
            return
        if why := lives(found):
            raise busy(why)
        kill_box(str(handle["id"]))
        if left := in_box(str(handle["id"])):
            names = ", ".join(label(proc.pid) for proc in left)
            raise BoxError("environment_processes_left", f"could not be killed: {names}")
        try:
            remove_directory(work)
        except OSError as error:
            raise BoxError("environment_stop_failed", f"{work}: {error}") from error


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """No other process takes the box in `work` over or ends it meanwhile."""
    try:
        descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise BoxError("environment_attach_invalid", f"{work}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy("another process takes it over") from None
        yield
    finally:
        os.close(descriptor)
