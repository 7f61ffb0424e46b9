"""A docker box of another process: what became of it, taking it over, ending it. All of it blocks."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ageval_boxes._leftovers import MARKER
from ageval_boxes.docker_box import _owner
from ageval_boxes.docker_box._container import KEEPER
from ageval_boxes.docker_box._engine import Engine, translated
from pytest_ageval.box import ProbeStatus
from pytest_ageval.errors import BoxError

_ID = re.compile(r"[0-9a-f]{16}")
_PS = "-eo pid,ppid,args"


def refuse_other(handle: Mapping[str, Any], kind: str) -> None:
    """Raises BoxError ``environment_attach_invalid`` unless `handle` is one of a box of `kind`."""
    if handle.get("kind") != kind:
        raise BoxError(
            "environment_attach_invalid", f"the handle is of {handle.get('kind')!r}, not of {kind!r}"
        )
    for name in ("id", "container", "work_dir"):
        if not isinstance(handle.get(name), str) or not handle[name]:
            raise BoxError("environment_attach_invalid", f"the handle has no {name}")
    if not _ID.fullmatch(handle["id"]):
        raise BoxError("environment_attach_invalid", f"{handle['id']!r} is not the id of a box")


def probe(engine: Engine, handle: Mapping[str, Any], kind: str, *, keep: bool) -> ProbeStatus:
    """What became of the box of `handle`. With `keep`, what has detached itself may run in an idle box."""
    try:
        refuse_other(handle, kind)
    except BoxError as error:
        return ProbeStatus("absent", error.message)
    row = _main(engine, handle)
    if row is None:
        return ProbeStatus("absent", f"its container {handle['container'][:12]} is gone")
    who = _owner.owner(row["Config"]["Labels"], ours=True)
    if who is not None:
        return ProbeStatus("busy", f"its owner, {who}, still runs")
    if not row["State"]["Running"]:
        return ProbeStatus("idle", "its container does not run")
    running = _commands(engine, row, keep=keep)
    if running:
        return ProbeStatus("busy", f"still running: {', '.join(running[:5])}")
    return ProbeStatus("idle")


def _main(engine: Engine, handle: Mapping[str, Any]) -> dict[str, Any] | None:
    """The container of the box, as the engine tells it; None if it is gone or another box's."""
    from docker.errors import NotFound

    try:
        found: dict[str, Any] = translated(engine.client.api.inspect_container, handle["container"])
    except BoxError as error:
        if isinstance(error.__cause__, NotFound):
            return None
        raise
    same = (found["Config"]["Labels"] or {}).get(_owner.BOX) == handle["id"]
    return found if same else None


def _commands(engine: Engine, row: Mapping[str, Any], *, keep: bool) -> list[str]:
    """The processes in the container but for its init and what keeps it open, as the engine sees them."""
    try:
        listed = translated(engine.client.api.top, row["Id"], ps_args=_PS)["Processes"] or ()
    except BoxError:
        # Where the engine's ps is another one, it still knows the commands that it started.
        return [f"command {name[:12]}" for name in row.get("ExecIDs") or ()]
    procs = {int(pid): (int(parent), words) for pid, parent, words in listed}
    init = int(row["State"]["Pid"])
    keepers = [pid for pid, (parent, words) in procs.items() if parent == init and words == " ".join(KEEPER)]
    others = procs.keys() - {init, *keepers[:1]}
    if keep:
        others = {pid for pid in others if not _detached(pid, procs, init)}
    return [f"{procs[pid][1][:60]} (pid {pid})" for pid in sorted(others)]


def _detached(pid: int, procs: Mapping[int, tuple[int, str]], init: int) -> bool:
    """Its line of parents ends at the container's init, not at a command of ours."""
    while pid in procs and pid != init:
        pid = procs[pid][0]
    return pid == init


def take_over(
    engine: Engine, handle: Mapping[str, Any], kind: str, note: Mapping[str, Any], *, keep: bool
) -> None:
    """Make `note` the one in the work directory of the box of `handle`; start what has stopped.

    Raises BoxError ``environment_attach_invalid`` or ``environment_attach_busy``.
    """
    refuse_other(handle, kind)
    work = Path(handle["work_dir"])
    with _alone(handle):
        status = probe(engine, handle, kind, keep=keep)
        if status.state == "absent":
            raise BoxError("environment_attach_invalid", f"the box is gone: {status.detail}")
        if status.state == "busy":
            raise busy(status.detail)
        if _owner.note_of(handle["id"], work) is None:
            raise BoxError("environment_attach_invalid", f"{work} is gone or is another box's")
        new = work / f".{MARKER}.{os.getpid()}"
        new.write_text(json.dumps(note), encoding="utf-8")
        new.replace(work / MARKER)
    _start_again(engine, handle)


def _start_again(engine: Engine, handle: Mapping[str, Any]) -> None:
    """Start the containers of the box that do not run, as after the engine's own start: itself last."""
    api = engine.client.api
    rows = translated(api.containers, all=True, filters={"label": f"{_owner.BOX}={handle['id']}"})
    stopped = [row["Id"] for row in rows if row["State"] != "running"]
    for container in sorted(stopped, key=lambda name: name == handle["container"]):
        translated(api.start, container)


def discard(engine: Engine, handle: Mapping[str, Any], kind: str) -> None:
    """Remove the box of `handle` with all that runs in it; nothing when it is gone.

    Raises BoxError ``environment_attach_invalid`` or ``environment_attach_busy``.
    """
    refuse_other(handle, kind)
    row = _main(engine, handle)
    who = _owner.owner(row["Config"]["Labels"], ours=True) if row is not None else None
    if who is not None:
        raise busy(f"its owner, {who}, still runs")
    with _alone(handle):
        _owner.remove(engine, handle["id"], Path(handle["work_dir"]))


def busy(why: str) -> BoxError:
    """The refusal of a box that is in use."""
    return BoxError("environment_attach_busy", f"the box cannot be had: {why}")


@contextmanager
def _alone(handle: Mapping[str, Any]) -> Iterator[None]:
    """No other process of this machine takes the box over, or ends it, meanwhile."""
    try:
        descriptor = os.open(handle["work_dir"], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # there is nothing to hold; what is left of it can be removed
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy("another process takes it over") from None
        yield
    finally:
        os.close(descriptor)
