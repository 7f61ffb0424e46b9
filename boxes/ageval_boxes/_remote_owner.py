"""Whose a sandbox is, for all remote kinds: which process, on which machine, and whether it lives."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from ageval_boxes._leftovers import boot_id
from ageval_boxes._processes import read_proc

#: The label that says which process owns a sandbox.
OWNER = "ageval.owner"
#: The label with the id of the box that a sandbox is.
BOX = "ageval.box"
#: A label that all sandboxes of ours have, and its value.
OURS = ("ageval.by", "pytest-ageval")


def owner() -> str:
    """This process, as the value of `OWNER`: host, boot, pid, start."""
    own = read_proc(os.getpid())
    return "/".join((socket.gethostname(), boot_id(), str(os.getpid()), str(own.start if own else 0)))


def marks(labels: Mapping[str, str], box_id: str) -> dict[str, str]:
    """All labels of the sandbox of the box `box_id` while this process owns it."""
    return {**labels, OURS[0]: OURS[1], OWNER: owner(), BOX: box_id}


def owner_lives(labels: Mapping[str, str]) -> bool | None:
    """The process that `labels` name runs; None where that cannot be known from this machine."""
    host, _, rest = labels.get(OWNER, "").partition("/")
    boot, _, rest = rest.partition("/")
    pid, _, start = rest.partition("/")
    if host != socket.gethostname() or not pid.isdigit():
        return None
    if boot != boot_id():
        return False
    found = read_proc(int(pid))
    return found is not None and found.alive and str(found.start) == start


def left_behind(labels: Mapping[str, str]) -> bool:
    """The owner that `labels` name is dead, or this very process; False for one on another machine."""
    return owner_lives(labels) is False or labels.get(OWNER) == owner()


def of_attempt(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of a box's `BoxSpec`: without those that are for us, or of the vendor or the user."""
    ours = (OWNER, BOX, OURS[0])
    return {name: value for name, value in labels.items() if name.startswith("ageval.") and name not in ours}
