"""Whose box it is and what its commands find; boxes whose image has paths and users of its own.

To these ``/attempt`` is added, and nothing is shared.

``/attempt/workspace`` is a link to the image's working directory, so that what is written for the
path contract works in the place where the image's author expects it.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ageval_boxes.docker_box import _egress
from ageval_boxes.docker_box._build import image_of
from ageval_boxes.docker_box._commands import Commands
from ageval_boxes.docker_box._engine import Engine, Image
from pytest_ageval.box import ARTIFACTS, EVALUATION, HOME, ROOT, WORKSPACE, system_script
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from ageval_boxes.docker_box._options import DockerOptions

_NUMBERS = re.compile(r"\d+:\d+")
_LINK = 'mkdir -p "$1" "$3" "$4" && ln -sn "$1" "$2" && chown "$5" "$3" "$4"'


def user_of(engine: Engine, options: DockerOptions) -> tuple[tuple[int, int], bool]:
    """The box's user, and whether its files can be the host's: it or root must be us."""
    own = engine.own_uid
    default = (own, os.getegid() if own else 0) if own and own == os.geteuid() else (10001, 10001)
    if own == 0 and os.geteuid() != 0:
        default = (0, 0)  # a rootless engine: its root is this user
    user = options.ids(default)
    root = os.geteuid() == 0 and own == 0
    shared = engine.socket is not None and own is not None and (root or user[0] == own)
    return user, shared and options.layout != "image"


def variables(attempt_id: str, options: DockerOptions, *, closed: bool) -> dict[str, str]:
    """The environment of every command; with `closed` it names the proxy of a network without a way out."""
    own = {} if options.layout == "image" else {"LANG": "C.UTF-8", "HOME": HOME}
    return {
        **own,
        "AGEVAL_WORKSPACE": WORKSPACE,
        "AGEVAL_ARTIFACTS": ARTIFACTS,
        "AGEVAL_EVALUATION": EVALUATION,
        "AGEVAL_ATTEMPT_ID": attempt_id,
        **(_egress.variables() if closed else {}),
        **options.environment,
    }


async def prepare(
    engine: Engine, container: str, image: str, options: DockerOptions
) -> tuple[str, tuple[int, int]]:
    """Make the paths of the contract in a started container; its user's name and ids."""
    found = await image_of(engine, image) or Image(image, "", "")
    user = options.user or found.user or "0"
    workdir = options.workdir or found.workdir or "/"
    if workdir.startswith(ROOT):
        raise BoxError("environment_options_invalid", f"workdir {workdir}: {ROOT} is the box's own")
    root = Commands(engine, container, "0:0", {})
    uid, gid = await _ids(root, image, user)
    link = system_script(_LINK, workdir, WORKSPACE, HOME, ARTIFACTS, f"{uid}:{gid}")
    made = await root.run(link, cwd=None, timeout=60)
    if not made.ok:
        raise BoxError("environment_start_failed", f"{image}: {made.stderr.strip()[:300]}")
    return user, (uid, gid)


async def _ids(root: Commands, image: str, user: str) -> tuple[int, int]:
    """The user and the group of a name; a command says them where the name does not."""
    if user in ("0", "root"):
        return 0, 0
    if _NUMBERS.fullmatch(user):
        uid, _, gid = user.partition(":")
        return int(uid), int(gid)
    found = await root.run(system_script("id -u && id -g"), cwd=None, user=user, timeout=60)
    ids = found.stdout.split()
    if not found.ok or len(ids) != 2 or not all(word.isdigit() for word in ids):
        raise BoxError(
            "environment_options_invalid",
            f"user {user!r}: {image} has no such user: {(found.stderr or found.stdout).strip()[:200]}",
        )
    return int(ids[0]), int(ids[1])
