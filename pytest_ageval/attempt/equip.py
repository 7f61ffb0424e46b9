"""What the agents find in the box: home files, skills, instructions, and login files of the operator."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pytest_ageval.box import HOME, WORKSPACE, Box
from pytest_ageval.config.equipment import remote_login
from pytest_ageval.errors import BoxError, ConfigError, ExecutorError
from pytest_ageval.trees import entries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.config.locked import Binding, Placed

#: Bytes of a login file, and of a text whose ``${NAME}`` are replaced.
MAX_FILE = 1024 * 1024

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_ROOTS = {"home": HOME, "workspace": WORKSPACE}
_TAKE = 'for file; do test ! -L "$file" && test -f "$file" && cat -- "$file"; rm -f -- "$file"; done; true'


async def equip(attempt: Attempt, box: Box) -> None:
    """Put in place what the roles' profiles, agent packages and the task ask for."""
    placed: dict[str, list[Placed]] = {}
    for binding in attempt.locked.bindings.values():
        await copy_logins(attempt, box, binding)
        equipment = binding.equipment
        for skills, root in equipment.image_skills:
            await copy_skills(attempt, box, skills, f"{HOME}/{root}")
        for row in (*equipment.files, *equipment.skills, *equipment.instructions):
            rows = placed.setdefault(f"{_ROOTS[row.root]}/{row.dest}", [])
            if row not in rows:
                rows.append(row)
    if not placed:
        return
    await make_parents(box, placed)
    with tempfile.TemporaryDirectory(prefix="ageval-equip-") as folder:
        for number, (dest, rows) in enumerate(placed.items()):
            source = await asyncio.to_thread(staged, attempt, rows, Path(folder, str(number)))
            await box.upload(source, dest)
    attempt.fact("agents_equipped", {dest: [row.shown for row in rows] for dest, rows in placed.items()})


async def copy_skills(attempt: Attempt, box: Box, source: str, dest: str) -> None:
    """Copy the skills that the image has in `source` to where the agent looks for them."""
    command = ["sh", "-c", 'mkdir -p -- "$2" && cp -R -- "$1"/. "$2"', "sh", source, box.visible_path(dest)]
    done = await box.exec(command, timeout=120)
    if not done.ok:
        raise BoxError("environment_setup_failed", f"skills_dir {source}: {done.stderr.strip()[:300]}")
    attempt.fact("skills_copied", {"from": source, "to": dest})


async def make_parents(box: Box, paths: Iterable[str]) -> None:
    """Make the directories above `paths`, as the box's user."""
    wanted = sorted({str(PurePosixPath(box.visible_path(path)).parent) for path in paths})
    made = await box.exec(["mkdir", "-p", "--", *wanted], timeout=60)
    if not made.ok:
        raise BoxError("environment_upload_failed", f"could not make {', '.join(wanted)}: {made.stderr}")


def staged(attempt: Attempt, rows: list[Placed], copy: Path) -> Path:
    """What is to be uploaded: the source itself, or a copy with variables replaced or several joined."""
    if len(rows) > 1:
        texts = [row.source.read_text(encoding="utf-8").rstrip("\n") for row in rows]
        copy.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
        return copy
    row = rows[0]
    if not row.expand:
        return row.source
    if row.source.is_file():
        expand(attempt, row.source, copy)
        return copy
    for entry in entries(row.source):
        found = Path(entry.path)
        target = copy / found.relative_to(row.source)
        if found.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(found.readlink())
        elif found.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            expand(attempt, found, target)
    copy.mkdir(exist_ok=True)
    return copy


def expand(attempt: Attempt, source: Path, target: Path) -> None:
    """Copy a file; in a text each ``${NAME}`` and ``{env:NAME}`` becomes the value of that variable.

    Raises `ExecutorError` ``unset_variable``.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        found = attempt.secret(name)
        if not found:
            raise ExecutorError(
                "unset_variable",
                f"{source.name}: the variable {name} is not set; it is named by a file of home-files",
            )
        return found

    data = source.read_bytes()
    try:
        text = data.decode("utf-8") if len(data) <= MAX_FILE else None
    except UnicodeDecodeError:
        text = None
    target.parent.mkdir(parents=True, exist_ok=True)
    if text is not None:
        data = _VARIABLE.sub(value, text).encode()
    target.write_bytes(data)
    target.chmod(stat.S_IMODE(source.stat().st_mode) | stat.S_IRUSR)


# -- login files -----------------------------------------------------------------------------------


async def copy_logins(attempt: Attempt, box: Box, binding: Binding) -> None:
    """Copy the operator's login files of a role's agent, which was asked for, and tell the redactor.

    Raises `ExecutorError` ``acp_credentials_missing`` and ``acp_auth_path_symlink``, or what a box on
    another machine means.
    """
    if binding.auth == "env":
        return
    if binding.auth == "keyless" and box.host_path(HOME) is None:
        error: ConfigError = remote_login(binding.role, box.kind)
        raise error
    found = {name: await asyncio.to_thread(read_login, name) for name in binding.logins}
    found = {name: text for name, text in found.items() if text is not None}
    if not found:
        names = ", ".join(f"~/{name}" for name in binding.logins)
        raise ExecutorError(
            "acp_credentials_missing",
            f"role {binding.role!r} is to sign in with a login file, and there is none: {names}; "
            "log in with the agent's own program first",
        )
    await make_parents(box, [f"{HOME}/{name}" for name in found])
    with tempfile.TemporaryDirectory(prefix="ageval-login-") as folder:
        for number, (name, text) in enumerate(found.items()):
            attempt.redactor.add(PurePosixPath(name).name, text or "")
            copy = Path(folder, str(number))
            await asyncio.to_thread(write_private, copy, text or "")
            if f"{HOME}/{name}" not in attempt.logins:
                attempt.logins.append(f"{HOME}/{name}")
            await box.upload(copy, f"{HOME}/{name}")
    attempt.fact("login_copied", {"role": binding.role, "auth": binding.auth, "files": sorted(found)})


def read_login(name: str) -> str | None:
    """The login file `name` of the operator's home; None if there is none. Links are refused."""
    path = Path.home() / name
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ExecutorError(
            "acp_auth_path_symlink", f"~/{name} is a link, or cannot be read: {error.strerror}"
        ) from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ExecutorError("acp_auth_path_symlink", f"~/{name} is no regular file")
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise ExecutorError("acp_credentials_missing", f"~/{name} is longer than {MAX_FILE} bytes")
    return data.decode("utf-8", "replace")


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


async def take_logins_away(attempt: Attempt) -> None:
    """Remove the login files from the box, as soon as no agent runs any more.

    An agent may have renewed its tokens; what the files hold now is made known to the redactor first.
    """
    taken, attempt.logins = attempt.logins, []
    for path in taken:
        shown = attempt.raw_box.visible_path(path)
        done = await attempt.raw_box.exec(["sh", "-c", _TAKE, "sh", shown], timeout=20)
        if done.stdout:
            attempt.redactor.add(PurePosixPath(path).name, done.stdout)
