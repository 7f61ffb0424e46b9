"""Which ssh boxes this user opened and has not closed: notes on this machine, and what to do about them.

A host may be out of reach when its box should be stopped. The note stays then, and the box is removed
by `reap`, or when another box is opened on the same host.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ageval_boxes._adoption import busy, lives, refuse_other
from ageval_boxes._leftovers import MARKER, marker, owner_lives, remove_directory
from ageval_boxes._processes import COOKIE
from ageval_boxes._ssh_connection import Address, Done, Host, host
from ageval_boxes._ssh_scripts import DOCKER, LEFT, STOP
from pytest_ageval.box import Leftover
from pytest_ageval.errors import BoxError


def notes_dir() -> Path:
    """Where the notes are: ``pytest-ageval/ssh`` in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pytest-ageval" / "ssh"


def root_name(box_id: str) -> str:
    """The name of a box's directory on the host."""
    return f"ageval-{box_id}"


def cookie(box_id: str, number: int | None = None) -> str:
    """What every process of the box, or of its command `number`, has in `COOKIE`."""
    return f"{box_id}:" if number is None else f"{box_id}:{number}."


class Note:
    """The note of one box. `data` is what `marker` says, with the address and the root."""

    def __init__(self, path: Path, data: dict[str, Any]) -> None:
        self.path = path
        self.data = data

    @classmethod
    def new(cls, box_id: str, labels: Mapping[str, str], address: Address) -> Note:
        """The note of a box that is about to be opened; not written yet."""
        data = {**marker(box_id, labels), "kind": "ssh", "machine": socket.gethostname()}
        data["address"] = msgspec.to_builtins(address)
        data["made"] = time.time()
        return cls(notes_dir() / f"{box_id}.json", data)

    @classmethod
    def of(cls, handle: Mapping[str, Any]) -> Note:
        """What a handle says. Raises BoxError ``environment_attach_invalid``."""
        refuse_other(handle, "ssh", "id", "address", "machine")
        try:
            note = cls(notes_dir() / f"{handle['id']}.json", dict(handle))
            if re.fullmatch(r"[0-9a-f]{16}", note.box_id) and note.address:
                return note
        except msgspec.ValidationError:
            pass
        raise BoxError("environment_attach_invalid", "the handle is not one that a box of the kind ssh gave")

    @property
    def owner(self) -> str:
        """Who owns the box, for people; "" if nobody does any more."""
        known = noted(self.box_id) or self
        if known.data.get("orphan"):
            return ""
        if known.data["machine"] != socket.gethostname():
            return f"it was opened on {known.data['machine']}, and only there it is known who owns it"
        return lives(known.data)

    def mark(self, work: Path) -> None:
        """Let the box's directory on this machine say whose it is, so that left ones are counted."""
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = {name: value for name, value in self.data.items() if name != "address"}
        (work / MARKER).write_text(json.dumps(mark), encoding="utf-8")

    @property
    def box_id(self) -> str:
        """The box's id."""
        return str(self.data["id"])

    @property
    def address(self) -> Address:
        """Where it is."""
        return msgspec.convert(self.data["address"], Address)

    def write(self, **more: Any) -> None:
        """Write the note, with further entries."""
        self.data.update(more)
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self.path.with_suffix(f".{os.getpid()}.new")
        new.write_text(json.dumps(self.data), encoding="utf-8")
        new.replace(self.path)

    def forget(self) -> None:
        """The box is gone."""
        self.path.unlink(missing_ok=True)


def notes() -> Iterator[Note]:
    """All notes of this user on this machine: others may share the cache directory."""
    for path in sorted(notes_dir().glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, msgspec.ValidationError):
            note = Note(path, json.loads(path.read_bytes()))
            here = note.data["kind"] == "ssh" and note.data["machine"] == socket.gethostname()
            if here and note.box_id and note.address:
                yield note


def noted(box_id: str) -> Note | None:
    """The note of a box on this machine."""
    return next((note for note in notes() if note.box_id == box_id), None)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Nobody else on this machine takes a box over meanwhile; no host is asked anything here."""
    notes_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(notes_dir(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def claim(note: Note, ours: Note) -> None:
    """Put our note in the place of a dead owner's. Raises BoxError ``environment_attach_busy``."""
    with alone():
        if why := note.owner:
            raise busy(why)
        names = ("parent", "container", "root", "cache", "work_dir", "made")
        ours.write(**{name: note.data[name] for name in names if name in note.data})


def remove(at: Host, note: Note, *, keep: bool = False, timeout: float = 20.0) -> str:
    """End everything of a box and remove its files; says how many processes. Raises BoxError."""
    if note.data.get("container"):
        return _remove_container(at, note, keep=keep, timeout=timeout)
    needle = f"{COOKIE}={cookie(note.box_id)}"
    parent = str(note.data.get("parent") or "")
    name = root_name(note.box_id)
    done = at.run(STOP, needle, parent, name, "keep" if keep else "delete", timeout=timeout)
    return f"{len(ended(done))} processes"


def _remove_container(at: Host, note: Note, *, keep: bool, timeout: float) -> str:
    name = root_name(note.box_id)
    words = ("kill", name) if keep else ("rm", "-f", "-v", name)
    done = at.run(DOCKER, *words, timeout=timeout)
    if done.code != 0 and "No such container" not in done.stderr and "is not running" not in done.stderr:
        raise BoxError("environment_stop_failed", done.stderr.strip()[-500:] or f"exit code {done.code}")
    return "a container"


def ended(done: Done) -> list[str]:
    """The labels of the processes that a script ended. Raises BoxError if some would not go."""
    lines = done.stdout.splitlines()
    if done.code == LEFT:
        left = ", ".join(line[1:] for line in lines if line.startswith("!"))
        raise BoxError("environment_processes_left", f"could not be killed: {left}")
    if done.code != 0:
        raise BoxError("environment_stop_failed", done.stderr.strip()[-500:] or f"exit code {done.code}")
    return [line[1:] for line in lines if line.startswith("-")]


def _with(labels: Mapping[str, str]) -> Iterator[Note]:
    for note in notes():
        has = note.data.get("labels") or {}
        if all(has.get(name) == value for name, value in labels.items()):
            yield note


def find(labels: Mapping[str, str]) -> list[Leftover]:
    """Boxes noted on this machine that carry all of `labels`. No host is asked."""
    found = []
    for note in _with(labels):
        where = f"{note.data.get('root') or root_name(note.box_id)} on {note.address}"
        made = note.data.get("made")
        age = time.time() - float(made) if made else None
        has = note.data.get("labels") or {}
        found.append(Leftover("ssh", where, has, age, owner_lives(note.data)))
    return found


def reap(labels: Mapping[str, str]) -> list[str]:
    """Remove the boxes that carry all of `labels` and whose owner is gone (or is us). A line for each.

    Hosts out of reach do not keep the others from being looked at; then BoxError
    ``environment_stop_failed`` names them.
    """
    said = []
    failed: dict[Address, BoxError] = {}
    for note in _with(labels):
        if owner_lives(note.data) or note.address in failed:
            continue
        try:
            said.append(_remove_noted(note))
        except BoxError as error:
            failed[note.address] = error
    if failed:
        why = "; ".join(f"{address}: {error.message}" for address, error in failed.items())
        done = f" (removed: {', '.join(said)})" if said else ""
        raise BoxError("environment_stop_failed", f"boxes are left on {why}{done}")
    return said


def sweep(address: Address) -> list[str]:
    """Remove boxes that could not be removed at their ends, from a host to which we have just connected.

    Not those of a process that was killed: they can be taken over until somebody cleans up.
    """
    said = []
    for note in notes():
        if note.data.get("orphan") and (note.address.host, note.address.port) == (address.host, address.port):
            with contextlib.suppress(BoxError):  # it stays noted; this box has nothing to do with it
                said.append(_remove_noted(note))
    return said


def remove_work(data: Mapping[str, Any]) -> None:
    """Remove the directory that a box had on this machine, if it is still that box's."""
    work = Path(str(data.get("work_dir") or os.devnull))
    with contextlib.suppress(OSError, ValueError):
        if json.loads((work / MARKER).read_bytes()).get("id") == data["id"]:
            remove_directory(work)


def _remove_noted(note: Note) -> str:
    root = note.data.get("root")
    processes = remove(host(note.address), note)
    note.forget()
    remove_work(note.data)
    attempt = (note.data.get("labels") or {}).get("ageval.attempt", note.box_id)
    return f"ssh box of {attempt}: {root or note.box_id} on {note.address} ({processes})"
