"""What an agent gets besides prompts: files, skills, instructions, MCP servers; and how it signs in.

They come from a profile or an agent package (``mcp_servers``, and the rows ``home-files`` and
``agent-skills`` of ``extensions``), whose paths start at the directory of that package or data set, and
from the task (``mcp_servers``, ``skills``, ``instructions``), whose paths start at the task. What the
bound agent cannot take is refused here.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pytest_ageval.config.check import Source, convert
from pytest_ageval.config.dataset import package_path
from pytest_ageval.config.formats import AgentSkills, HomeFiles, McpServerRow, ProfileRow
from pytest_ageval.config.hashing import digest_of, file_digest, tree_digest
from pytest_ageval.config.locked import Binding, Equipment, Placed
from pytest_ageval.config.where import listed
from pytest_ageval.errors import ConfigError
from pytest_ageval.executor import McpServer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_ageval.config.job import JobOptions
    from pytest_ageval.config.tasks import TaskDocument
    from pytest_ageval.executor import Executor, Fittings

Auth = Literal["env", "keyless", "keyless-remote"]

HOME_FILES = "home-files"
AGENT_SKILLS = "agent-skills"
#: Rows of ``extensions`` that are read here.
EQUIPMENT_PLUGINS = frozenset((HOME_FILES, AGENT_SKILLS))
#: Kinds of box that are on another machine. Of others it is known when they have started.
REMOTE_BOXES = frozenset(("ssh", "e2b", "daytona"))

_LOCATOR = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


class Place(Protocol):
    """Where a row was written: says so in errors, and `root` is where its paths start."""

    @property
    def root(self) -> Path | None:
        """The directory that paths are relative to."""
        ...

    @property
    def source(self) -> Source:
        """The file."""
        ...

    @property
    def at(self) -> str:
        """The pointer of the row in that file."""
        ...

    def error(self, code: str, message: str, pointer: str = "", hint: str | None = None) -> ConfigError:
        """A ConfigError at `pointer` of the row."""
        ...


# -- signing in ------------------------------------------------------------------------------------


def bind_auth(
    profile: ProfileRow,
    job: JobOptions,
    cls: type[Executor],
    fittings: Fittings,
    place: Place,
    base_url: str | None,
) -> Auth:
    """How a role's agent signs in. Raises ConfigError ``agent_auth``.

    ``--agent-auth keyless`` is for agents in the box; a model that is called from the host keeps its key,
    and an executor that calls none has nowhere to sign in.
    """
    auth: Auth = profile.auth or "env"
    if job.auth == "env":
        auth = "env"
    elif job.auth == "keyless" and auth == "env" and cls.calls_from_box():
        auth = "keyless"
    if auth == "env":
        return auth
    if not fittings.logins:
        raise place.error(
            "agent_auth",
            f"the agent of the executor {profile.executor} takes no login file",
            "/auth",
            "give it a key: api_key: ${NAME}",
        )
    if base_url is not None:
        raise place.error(
            "agent_auth",
            "a login is for the vendor's own address: it is not sent to a base_url",
            "/base_url",
            "leave one of them out",
        )
    return auth


def check_remote_login(binding: Binding, kind: str) -> None:
    """ConfigError ``agent_auth`` if a login file would leave this machine and nobody said that it may."""
    if binding.auth == "keyless" and kind in REMOTE_BOXES:
        raise remote_login(binding.role, kind)


def remote_login(role: str, kind: str) -> ConfigError:
    """The error of a login file that would leave this machine."""
    return ConfigError(
        "agent_auth",
        f"the login file of the role {role!r} is not copied into a box on another machine ({kind})",
        hint="use a key; or write auth: keyless-remote into the profile or the agent package",
    )


# -- gathering -------------------------------------------------------------------------------------


class _TaskPlace:
    """The task, as the place of what it ships."""

    def __init__(self, task: TaskDocument) -> None:
        self.root = task.root
        self.at = ""
        self.source = task.source

    def error(self, code: str, message: str, pointer: str = "", hint: str | None = None) -> ConfigError:
        return self.source.error(code, message, pointer, hint)


def gather_equipment(profile: ProfileRow, place: Place, task: TaskDocument, fittings: Fittings) -> Equipment:
    """Everything that the role's agent gets. Raises ConfigError for what is missing, or not to be taken."""
    ours = _TaskPlace(task)
    files: list[Placed] = []
    skills = _skills(task.skills, ours, "/skills", fittings.skills)
    told = [task.instructions] if task.instructions else []
    instructions = _instructions(told, ours, "/instructions", fittings.instructions)
    for index, row in enumerate(profile.extensions or ()):
        if row.plugin not in EQUIPMENT_PLUGINS:
            continue
        at = f"/extensions/{index}/options"
        options = row.options or {}
        if row.plugin == HOME_FILES:
            rows = convert(options, HomeFiles, place.source, at=place.at + at).files
            files += [
                Placed(
                    _existing(found.src, place, f"{at}/files/{number}/src"),
                    _inside(found.dest, place, f"{at}/files/{number}/dest"),
                    found.dest_root,
                    expand=True,
                    shown=found.src,
                )
                for number, found in enumerate(rows)
            ]
            continue
        given = convert(options, AgentSkills, place.source, at=place.at + at)
        roots = fittings.skills
        if given.dest_roots is not None:
            roots = tuple(_inside(root, place, f"{at}/dest_roots") for root in given.dest_roots)
        skills += _skills([s.src for s in given.skills or ()], place, f"{at}/skills", roots)
        told = [given.instructions] if isinstance(given.instructions, str) else given.instructions or []
        instructions += _instructions(told, place, f"{at}/instructions", fittings.instructions)
    found = Equipment(
        tuple(files),
        tuple(skills),
        tuple(instructions),
        (
            *_servers(task.mcp_servers, ours, fittings),
            *_servers(profile.mcp_servers or (), place, fittings),
        ),
        _image_skills(task, ours, fittings),
    )
    _refuse_twice(found, place)
    for placed in found.files:
        if placed.root == "home" and placed.dest in fittings.writes:
            raise place.error(
                "unsupported_equipment",
                f"the agent's own settings are written to {placed.dest}; {placed.shown} would be lost",
                "/extensions",
                "set what you need through model, base_url and options.env",
            )
    return found


def _skills(sources: Iterable[str], place: Place, at: str, roots: Sequence[str]) -> list[Placed]:
    found = []
    for source in sources:
        if not roots:
            raise place.error("unsupported_equipment", "the agent has no skills", at)
        path = _existing(source, place, at)
        if not (path / "SKILL.md").is_file():
            raise place.error("missing_reference", f"the skill {source} has no SKILL.md", at)
        found += [Placed(path, f"{root}/{path.name}", shown=source) for root in roots]
    return found


def _image_skills(task: TaskDocument, place: Place, fittings: Fittings) -> tuple[tuple[str, str], ...]:
    source = task.harbor.skills_dir if task.harbor is not None else None
    if source is None:
        return ()
    if not fittings.skills:
        raise place.error("unsupported_equipment", "the agent has no skills", "/environment/skills_dir")
    return tuple((source, root) for root in fittings.skills)


def _instructions(sources: Iterable[str], place: Place, at: str, dest: str | None) -> list[Placed]:
    found = []
    for source in sources:
        if dest is None:
            raise place.error(
                "unsupported_equipment",
                "the agent reads no file of instructions",
                at,
                "put them into the prompt, or into a file of the workspace",
            )
        path = _existing(source, place, at)
        if not path.is_file():
            raise place.error("missing_reference", f"the instructions {source} are no file", at)
        found.append(Placed(path, dest, shown=source))
    return found


def _servers(rows: Iterable[McpServerRow], place: Place, fittings: Fittings) -> list[McpServer]:
    found = []
    for index, row in enumerate(rows):
        at = f"/mcp_servers/{index}"
        server = _server(row, place, at)
        if server.transport not in fittings.mcp:
            have = f"; it takes: {listed(fittings.mcp)}" if fittings.mcp else ""
            raise place.error(
                "unsupported_equipment",
                f"the agent takes no MCP server over {server.transport}{have}",
                at,
            )
        found.append(server)
    return found


def _server(row: McpServerRow, place: Place, at: str) -> McpServer:
    if (row.command is None) == (row.url is None):
        raise place.error("invalid_schema", f"the MCP server {row.name} needs either command or url", at)
    if row.command is not None:
        wrong = [name for name in ("headers",) if getattr(row, name) is not None]
        fits = row.transport in (None, "stdio")
    else:
        wrong = [name for name in ("args", "env") if getattr(row, name) is not None]
        fits = row.transport != "stdio"
    if wrong:
        raise place.error(
            "invalid_schema", f"{wrong[0]} does not go with the others of {row.name}", f"{at}/{wrong[0]}"
        )
    if not fits:
        raise place.error(
            "invalid_schema", f"transport {row.transport} does not fit the rest of {row.name}", at
        )
    if row.command is not None:
        return McpServer(row.name, "stdio", row.command, tuple(row.args or ()), dict(row.env or {}))
    # Harbor's name of streamable HTTP, and the protocol's.
    transport: Literal["http", "sse"] = "sse" if row.transport == "sse" else "http"
    return McpServer(row.name, transport, url=row.url, headers=dict(row.headers or {}))


def _existing(text: str, place: Place, at: str) -> Path:
    """The file or directory `text` below the place's root; links that lead out of it are refused."""
    relative = package_path(text, place.source, place.at + at)
    root = (place.root or Path()).resolve()
    path = root / relative
    if not path.resolve().is_relative_to(root):
        raise place.error("path_outside_package", f"{text} leads out of {root.name}", at)
    if not path.exists():
        raise place.error("missing_reference", f"{text} is not there", at, f"paths start at {root}")
    return path


def _inside(text: str, place: Place, at: str) -> str:
    dest = package_path(text, place.source, place.at + at)
    if dest == ".":
        raise place.error("invalid_schema", "names no file or directory", at)
    return dest


def _refuse_twice(found: Equipment, place: Place) -> None:
    names = [server.name for server in found.mcp_servers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise place.error("invalid_schema", f"the MCP server {twice[0]} is given twice", "/mcp_servers")
    seen: dict[tuple[str, str], Placed] = {}
    for placed in (*found.files, *found.skills):
        key = (placed.root, placed.dest)
        if key in seen and seen[key].source != placed.source:
            raise place.error(
                "invalid_schema", f"{placed.shown} and {seen[key].shown} have one destination: {placed.dest}"
            )
        seen[key] = placed


# -- the lock --------------------------------------------------------------------------------------


def locked_equipment(equipment: Equipment) -> dict[str, Any]:
    """What of it can change an outcome: destinations, digests of contents, servers. No secret's value."""
    found: dict[str, Any] = {}
    for name in ("files", "skills", "instructions"):
        if rows := getattr(equipment, name):
            found[name] = [
                {"dest": f"{row.root}/{row.dest}", "digest": _digest(row.source), "src": row.shown}
                for row in rows
            ]
    if equipment.image_skills:
        found["image_skills"] = [{"src": src, "dest": f"home/{dest}"} for src, dest in equipment.image_skills]
    if equipment.mcp_servers:
        found["mcp_servers"] = [_locked_server(server) for server in equipment.mcp_servers]
    return found


def _digest(path: Path) -> str:
    return tree_digest(path) if path.is_dir() else file_digest(path)


def _locked_server(server: McpServer) -> dict[str, Any]:
    row = {name: value for name, value in asdict(server).items() if value not in (None, (), {})}
    return {**row, **{n: _shown_values(row[n]) for n in ("env", "headers") if n in row}}


def _shown_values(values: Mapping[str, str]) -> dict[str, str]:
    """A value that names a variable is shown; another one may be a secret, whether it says so or not."""
    return {
        name: value if _LOCATOR.search(value) else digest_of(value)[:23] for name, value in values.items()
    }


def files_are_unique(bindings: Iterable[Binding]) -> None:
    """ConfigError ``invalid_schema`` if two roles, which share a box, want another file at one place."""
    seen: dict[tuple[str, str], tuple[str, tuple[Path, ...]]] = {}
    for binding in bindings:
        found: dict[tuple[str, str], list[Path]] = {}
        for placed in (*binding.equipment.files, *binding.equipment.skills, *binding.equipment.instructions):
            found.setdefault((placed.root, PurePosixPath(placed.dest).as_posix()), []).append(placed.source)
        for key, sources in found.items():
            role, before = seen.setdefault(key, (binding.role, tuple(sources)))
            if before != tuple(sources):
                raise ConfigError(
                    "invalid_schema",
                    f"the roles {role!r} and {binding.role!r} share a box and want different files at "
                    f"{key[0]}/{key[1]}",
                )
