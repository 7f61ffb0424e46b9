"""Who owns a box: by labels on all of it, and by the note in its work directory.

Labels cannot be changed. Who takes a box over writes the note anew, and the labels lead to it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ageval_boxes import _leftovers
from ageval_boxes._leftovers import MARKER, boot_id
from ageval_boxes._processes import read_proc
from ageval_boxes.docker_box._engine import Engine, connect, translated
from pytest_ageval.box import Leftover
from pytest_ageval.errors import BoxError

BOX = "ageval.box"
#: The box's directory on the host that opened it.
WORK = "ageval.work_dir"
_OWNER = "ageval.owner."
_HOST, _BOOT, _PID, _START = (f"{_OWNER}{name}" for name in ("host", "boot", "pid", "start"))
#: How often what is still in use is tried again.
_TRIES = 10
#: Ours, and what a container has from its image.
_NOT_OF_SPEC = (BOX, WORK, "ageval.image")


def labels(box_id: str, given: Mapping[str, str], work_dir: Path) -> dict[str, str]:
    """What a container, network or volume of the box `box_id` carries."""
    own = read_proc(os.getpid())
    return {
        **given,
        BOX: box_id,
        WORK: str(work_dir),
        _HOST: socket.gethostname(),
        _BOOT: boot_id(),
        _PID: str(os.getpid()),
        _START: str(own.start if own else 0),
    }


def note_of(box_id: str, work_dir: str | Path | None) -> dict[str, Any] | None:
    """The note in the work directory of the box, if that is where it is and the note is about this box."""
    if not work_dir:
        return None
    try:
        found = json.loads((Path(work_dir) / MARKER).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("id") == box_id else None


def owner(found: Mapping[str, str], *, ours: bool) -> str | None:
    """Which process owns the box with these labels, if it lives or may live on another machine.

    This very process counts only with `ours`.
    """
    note = note_of(found.get(BOX, ""), found.get(WORK)) if found.get(_HOST) == socket.gethostname() else None
    if note is not None:
        boot, pid, start = note.get("boot_id"), note.get("pid"), note.get("start")
    else:
        boot, pid, start = found.get(_BOOT), found.get(_PID), found.get(_START)
    if boot != boot_id():
        host = found.get(_HOST)
        return f"a process of {host}" if host != socket.gethostname() else None
    try:
        number, begun = int(str(pid)), int(str(start))
    except ValueError:
        return None
    if number == os.getpid() and not ours:
        return None
    proc = read_proc(number)
    lives = proc is not None and proc.alive and proc.start == begun
    return f"process {number}" if lives else None


@dataclass(slots=True)
class Found:
    """A box, by what of it is on the engine and on the host. `parts` names it for people."""

    id: str
    #: Labels of its containers, networks and volumes; empty if only the directory is left.
    marks: dict[str, str] = field(default_factory=dict)
    #: Those of its specification, or of who took it over.
    labels: dict[str, str] = field(default_factory=dict)
    work_dir: Path | None = None
    parts: list[str] = field(default_factory=list)
    made: float | None = None

    def is_of(self, wanted: Mapping[str, str]) -> bool:
        """It has all labels of `wanted`: from its specification, or from who took it over."""
        return any(wanted.items() <= has.items() for has in (self.marks, self.labels))

    @property
    def alive(self) -> bool:
        """Its owner lives and is another process than this one."""
        if self.marks:
            return owner(self.marks, ours=False) is not None
        note = note_of(self.id, self.work_dir)
        return note is not None and _leftovers.owner_lives(note)

    def take(self, part: str, made: float | None) -> None:
        """Something more of it."""
        self.parts.append(part)
        if made is not None:
            self.made = made if self.made is None else min(self.made, made)

    def describe(self) -> str:
        """``container ageval-1, directory /tmp/...``."""
        return ", ".join(self.parts)


def boxes(engine: Engine, kind: str, wanted: Mapping[str, str]) -> list[Found]:
    """The boxes on this engine, and those of `kind` with a directory here, that carry `wanted`. Blocks."""
    found: dict[str, Found] = {}
    for what, name, marks, made in _on_engine(engine):
        if _HOST not in marks:
            continue  # another kind's, which runs containers on this engine and finds them itself
        box = found.setdefault(marks[BOX], Found(marks[BOX]))
        box.marks = box.marks or marks
        box.take(f"{what} {name}", made)
    for left in _leftovers.find(kind, {}):
        note = json.loads(_text(Path(left.where) / MARKER) or "{}")
        if note.get("id"):
            box = found.setdefault(str(note["id"]), Found(str(note["id"])))
            box.work_dir, box.labels = Path(left.where), dict(left.labels)
            age = left.age_seconds
            box.take(f"directory {left.where}", None if age is None else time.time() - age)
    for box in found.values():
        _complete(box)
    return [box for box in found.values() if box.is_of(wanted)]


def _complete(box: Found) -> None:
    """Where it is, if that is not where boxes usually are; and whose it is now."""
    if box.work_dir is None and (note := note_of(box.id, box.marks.get(WORK))):
        box.work_dir, box.labels = Path(box.marks[WORK]), dict(note.get("labels") or {})
        box.take(f"directory {box.work_dir}", None)
    if not box.labels:
        box.labels = {
            name: value
            for name, value in box.marks.items()
            if name.startswith("ageval.") and not name.startswith(_OWNER) and name not in _NOT_OF_SPEC
        }


def _on_engine(engine: Engine) -> Iterable[tuple[str, str, dict[str, str], float | None]]:
    api, query = engine.client.api, {"label": BOX}
    for row in translated(api.containers, all=True, filters=query):
        yield "container", row["Names"][0].lstrip("/"), row["Labels"], float(row["Created"])
    for row in translated(api.networks, filters=query):
        yield "network", row["Name"], row["Labels"], _seconds(row.get("Created"))
    for row in translated(api.volumes, filters=query)["Volumes"] or ():
        yield "volume", row["Name"], row["Labels"], _seconds(row.get("CreatedAt"))


def _seconds(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:  # removed by its owner at this moment
        return ""


def leftovers(kind: str, wanted: Mapping[str, str]) -> list[Leftover]:
    """One row for each box of `boxes`. Blocks."""
    now = time.time()
    return [
        Leftover(kind, box.describe(), box.labels, None if box.made is None else now - box.made, box.alive)
        for box in boxes(connect(), kind, wanted)
    ]


def reap(kind: str, wanted: Mapping[str, str]) -> list[str]:
    """Remove the boxes of `boxes`, but for those of another living process; a line for each. Blocks."""
    engine = connect()
    removed = []
    for box in boxes(engine, kind, wanted):
        if not box.alive:
            remove(engine, box.id, box.work_dir)
            attempt = box.labels.get("ageval.attempt", "an unknown attempt")
            removed.append(f"{kind} box of {attempt}: {box.describe()}")
    return removed


def _gone(remove: Any, *args: Any, **kwargs: Any) -> None:
    """Remove; that someone else has removed it, or is about to, is as good.

    What is still in use by a container that is just going is tried again.
    """
    from docker.errors import APIError, NotFound

    for again in range(_TRIES, -1, -1):
        try:
            translated(remove, *args, **kwargs)
        except BoxError as error:
            cause = error.__cause__
            words = str(cause.explanation) if isinstance(cause, APIError) else ""
            if isinstance(cause, NotFound) or "already in progress" in words:
                return
            if again and ("active endpoints" in words or "is in use" in words):
                time.sleep(0.2)
                continue
            raise
        return


def remove_container(engine: Engine, container: str) -> None:
    """Remove a container by force, with the volumes that have no name. Blocks."""
    _gone(engine.client.api.remove_container, container, v=True, force=True)


def remove_all(engine: Engine, box_id: str) -> None:
    """Remove every container, network and volume of one box. Blocks."""
    api = engine.client.api
    query = {"label": f"{BOX}={box_id}"}
    for row in translated(api.containers, all=True, filters=query):
        remove_container(engine, row["Id"])
    for row in translated(api.networks, filters=query):
        _gone(api.remove_network, row["Id"])
    for row in translated(api.volumes, filters=query)["Volumes"] or ():
        _gone(api.remove_volume, row["Name"], force=True)


def remove(engine: Engine, box_id: str, work_dir: Path | None) -> None:
    """`remove_all`, and the directory of the host if it is still this box's. Blocks."""
    remove_all(engine, box_id)
    if work_dir is not None and note_of(box_id, work_dir) is not None:
        _leftovers.remove_directory(work_dir)
