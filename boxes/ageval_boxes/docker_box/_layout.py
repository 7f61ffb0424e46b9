"""Boxes whose image has paths and users of its own: ``/attempt`` is added to it, and nothing is shared.

``/attempt/workspace`` is a link to the image's working directory, so that what is written for the
path contract works in the place where the image's author expects it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ageval_boxes.docker_box._commands import Commands
from ageval_boxes.docker_box._engine import Engine, call
from pytest_ageval.box import ARTIFACTS, HOME, ROOT, WORKSPACE, system_script
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from ageval_boxes.docker_box._options import DockerOptions

_LINK = 'mkdir -p "$1" "$3" "$4" && ln -sn "$1" "$2" && chown "$5" "$3" "$4"'


async def prepare(
    engine: Engine, container: str, image: str, options: DockerOptions
) -> tuple[str, tuple[int, int]]:
    """Make the paths of the contract in a started container; its user's name and ids."""
    config: dict[str, Any] = (await call(engine.client.api.inspect_image, image)).get("Config") or {}
    user = options.user or str(config.get("User") or "") or "0"
    workdir = options.workdir or str(config.get("WorkingDir") or "") or "/"
    if workdir.startswith(ROOT):
        raise BoxError("environment_options_invalid", f"workdir {workdir}: {ROOT} is the box's own")
    root = Commands(engine, container, "0:0", {})
    found = await root.run(system_script("id -u && id -g"), cwd=None, user=user, timeout=60)
    ids = found.stdout.split()
    if not found.ok or len(ids) != 2 or not all(word.isdigit() for word in ids):
        raise BoxError(
            "environment_options_invalid",
            f"user {user!r}: {image} has no such user: {(found.stderr or found.stdout).strip()[:200]}",
        )
    uid, gid = int(ids[0]), int(ids[1])
    link = system_script(_LINK, workdir, WORKSPACE, HOME, ARTIFACTS, f"{uid}:{gid}")
    made = await root.run(link, cwd=None, timeout=60)
    if not made.ok:
        raise BoxError("environment_start_failed", f"{image}: {made.stderr.strip()[:300]}")
    return user, (uid, gid)
