"""Which ssh boxes this user opened and has not closed: notes on this machine, and what to do about them.

A host may be out of reach when its box should be stopped. The note stays then, and the box is removed
by `reap`, or when another box is opened on the same host.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ageval_boxes._leftovers import marker, owner_lives
from ageval_boxes._processes import COOKIE
from ageval_boxes._ssh_connection import Address, Done, Host, host
from ageval_boxes._ssh_scripts import DOCKER, LEFT, STOP
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
        return cls(notes_dir() / f"{box_id}.json", data)

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


def reap(labels: Mapping[str, str]) -> list[str]:
    """Remove the boxes that carry all of `labels` and whose owner is gone (or is us). A line for each.

    Hosts out of reach do not keep the others from being looked at; then BoxError
    ``environment_stop_failed`` names them.
    """
    said = []
    failed: dict[Address, BoxError] = {}
    for note in notes():
        has = note.data.get("labels") or {}
        if any(has.get(name) != value for name, value in labels.items()) or owner_lives(note.data):
            continue
        if note.address in failed:
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
    """Remove what earlier boxes left on a host to which we have just connected."""
    said = []
    for note in notes():
        gone = note.data.get("orphan") or (note.data.get("pid") != os.getpid() and not owner_lives(note.data))
        if gone and (note.address.host, note.address.port) == (address.host, address.port):
            with contextlib.suppress(BoxError):  # it stays noted; this box has nothing to do with it
                said.append(_remove_noted(note))
    return said


def _remove_noted(note: Note) -> str:
    root = note.data.get("root")
    processes = remove(host(note.address), note)
    note.forget()
    attempt = (note.data.get("labels") or {}).get("ageval.attempt", note.box_id)
    return f"ssh box of {attempt}: {root or note.box_id} on {note.address} ({processes})"
