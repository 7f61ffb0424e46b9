"""How the container of a box is made: mounts, limits, privileges, network."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ageval_boxes.docker_box import _main
from ageval_boxes.docker_box._checks import mapping
from ageval_boxes.docker_box._egress import NO_RESOLVER
from ageval_boxes.docker_box._engine import Engine
from pytest_ageval.box import ARTIFACTS, HOME, ROOT, WORKSPACE, cache_root
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from ageval_boxes.docker_box._compose import Project
    from ageval_boxes.docker_box._options import DockerOptions

#: What root keeps in the container: enough for installers, tar and su.
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "SETFCAP",
    "NET_BIND_SERVICE", "SYS_CHROOT",
    # Ours: to see in whose environment a cookie is. In its own pid namespace it reaches nobody else.
    "SYS_PTRACE",
)  # fmt: skip

#: Processes in a box, where the task does not say.
PIDS = 4096

#: Where the host's installs of agents are seen in a box, read-only.
AGENTS = "/opt/ageval/agents"

#: What keeps the container open. A number, since not every sleep knows "infinity".
KEEPER = ["sleep", "2147483647"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a container is to be. `files` is the host's directory behind ``/attempt``, if there is one."""

    image: str
    name: str
    options: DockerOptions
    resources: Mapping[str, Any]
    labels: Mapping[str, str]
    files: Path | None
    project: Project | None
    #: The network of boxes that the task gives no other.
    bridge: str
    #: The network without a way out, with ``egress: llm``.
    closed: str | None = None
    working_dir: str = WORKSPACE
    #: Directories of the host that are seen read-only, and where; only with `files`.
    shown: Sequence[tuple[Path, str]] = ()

    @property
    def uses_bridge(self) -> bool:
        """It is on the network of boxes, or will be."""
        if self.closed is not None or (self.project is not None and self.project.containers):
            return False
        return self.options.network == "bridge" or "public" in self.options.network_phases


def agents_directory() -> Path:
    """The host directory that holds the agents' installs."""
    return cache_root() / "agents"


def create(engine: Engine, plan: Plan) -> tuple[str, list[str]]:
    """Create the container; returns its id, and what the engine says that it cannot enforce. Blocks."""
    from docker.types import Mount

    api = engine.client.api
    mounts = []
    if plan.files is not None:
        agents_directory().mkdir(parents=True, exist_ok=True)
        mounts = [
            # Mounts, not binds: a directory that the engine does not see is an error, not made.
            Mount(ROOT, str(plan.files.resolve()), type="bind"),
            Mount(AGENTS, str(agents_directory().resolve()), type="bind", read_only=True),
            *(
                Mount(target, str(source.resolve()), type="bind", read_only=True)
                for source, target in plan.shown
                if not _is_an_install(source, target)
            ),
        ]
    main: Mapping[str, Any] = {}
    more: dict[str, Any] = {}
    if plan.project is not None and plan.options.layout == "image":
        main = plan.project.main
        more, shared = _main.host_config(
            engine, main, plan.project.name, plan.project.file.parent, plan.labels
        )
        mounts += shared
    network, endpoint = _network(engine, plan)
    host = api.create_host_config(
        init=True,
        mounts=mounts,
        network_mode=network,
        security_opt=["no-new-privileges"],
        cap_drop=["ALL"],
        cap_add=[*CAPABILITIES, *plan.options.cap_add, *(main.get("cap_add") or ())],
        dns=[NO_RESOLVER] if plan.closed or "allowlist" in plan.options.network_phases else None,
        **_limits(plan.resources),
        **more,
    )
    made = api.create_container(
        plan.image,
        command=KEEPER[1:],
        entrypoint=KEEPER[:1],
        name=plan.name,
        # Root's, so that no command of the box's user can end it.
        user="0:0",
        working_dir=plan.working_dir,
        labels={**mapping(main.get("labels")), **plan.labels},
        hostname=main.get("hostname"),
        host_config=host,
        networking_config=endpoint,
        healthcheck={"test": ["NONE"]},
        platform=plan.options.platform,
    )
    for name, aliases in _further_networks(plan, network).items():
        api.connect_container_to_network(made["Id"], name, aliases=aliases)
    return str(made["Id"]), [str(words) for words in made.get("Warnings") or ()]


def _is_an_install(source: Path, target: str) -> bool:
    """It is seen there anyway, with all agents' installs."""
    root = agents_directory().resolve()
    real = source.resolve()
    return real.is_relative_to(root) and target == f"{AGENTS}/{real.relative_to(root)}"


def _network(engine: Engine, plan: Plan) -> tuple[str, Any]:
    asked, project = plan.options.network, plan.project
    if plan.options.network_phases:
        return "none", None
    if plan.closed is not None:
        return plan.closed, None
    if asked.startswith("service:"):
        if project is None:
            raise BoxError("environment_options_invalid", f"network {asked}: there is no compose project")
        return f"container:{project.containers[asked.removeprefix('service:')]}", None
    if project is not None and project.containers and (asked == "bridge" or project.internal):
        api = engine.client.api
        name, aliases = next(iter(_joined(plan).items()))
        config = api.create_endpoint_config(aliases=aliases)
        return name, api.create_networking_config({name: config})
    return (plan.bridge if asked == "bridge" else asked), None


def _joined(plan: Plan) -> dict[str, list[str]]:
    """The networks of the compose project that the container is in, with its names there."""
    project = plan.project
    if project is None or not project.containers:
        return {}
    if plan.options.layout != "image" or not project.main.get("networks"):
        return {project.network: ["main"]}
    return _main.networks(project.main, project.name, project.network)


def _further_networks(plan: Plan, first: str) -> dict[str, list[str]]:
    if plan.project is None or not plan.project.containers or plan.options.network.startswith("service:"):
        return {}
    if plan.options.network not in ("bridge", "none") or (first == "none"):
        return {}
    return {name: aliases for name, aliases in _joined(plan).items() if name != first}


def _limits(resources: Mapping[str, Any]) -> dict[str, Any]:
    from docker.types import DeviceRequest

    found: dict[str, Any] = {"pids_limit": int(resources.get("pids") or PIDS)}
    if resources.get("cpus"):
        found["nano_cpus"] = int(float(resources["cpus"]) * 1_000_000_000)
    if resources.get("memory_mb"):
        # The same for both: no swap beyond it.
        found["mem_limit"] = found["memswap_limit"] = int(float(resources["memory_mb"]) * 1024 * 1024)
    if resources.get("gpus"):
        found["device_requests"] = [DeviceRequest(count=int(resources["gpus"]), capabilities=[["gpu"]])]
    return found


def not_enforced(resources: Mapping[str, Any]) -> list[str]:
    """What a task asks for and no container can be held to."""
    return sorted({"storage_mb", "gpu_types"} & set(resources))


def check_gpus(engine: Engine, resources: Mapping[str, Any]) -> None:
    """Raises BoxError ``environment_gpu_unavailable`` if GPUs are asked for and the engine has none."""
    if not resources.get("gpus"):
        return
    if "nvidia" not in (engine.info.get("Runtimes") or {}) and not engine.info.get("DiscoveredDevices"):
        raise BoxError(
            "environment_gpu_unavailable",
            f"the task asks for {resources['gpus']} GPU(s), and the engine at {engine.host} has no runtime "
            "for them; install the NVIDIA Container Toolkit",
        )


def make_directories(engine: Engine, container: str, owner: tuple[int, int]) -> None:
    """Make the empty directories of a box whose files are not the host's. Blocks."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path in (ROOT, WORKSPACE, HOME, ARTIFACTS):
            row = tarfile.TarInfo(path.lstrip("/"))
            row.type, row.mode = tarfile.DIRTYPE, 0o755
            row.uid, row.gid = owner
            tar.addfile(row)
    archive.seek(0)
    engine.client.api.put_archive(container, "/", archive)


def expose(path: Path) -> str:
    """Where the box sees `path`: an agent's install, or a single program (copied beside the installs).

    Raises BoxError ``environment_expose_invalid`` for any other path.
    """
    root = agents_directory()
    with_links = path.expanduser().absolute()
    if with_links.is_relative_to(root.absolute()) and with_links.exists():
        return f"{AGENTS}/{with_links.relative_to(root.absolute())}"
    real = with_links.resolve()
    if not real.is_file():
        raise BoxError(
            "environment_expose_invalid",
            f"docker boxes see agents' installs below {root} only, not {path}; put it into the image",
        )
    return f"{AGENTS}/{_kept(real, root).relative_to(root)}"


def _kept(program: Path, root: Path) -> PurePosixPath | Path:
    """A copy of a program in the directory that boxes see; made once for each version of it."""
    info = program.stat()
    key = hashlib.sha256(f"{program}\0{info.st_size}\0{info.st_mtime_ns}".encode()).hexdigest()[:12]
    target = root / f"bin-{key}" / program.name
    if target.exists():
        return target
    root.mkdir(parents=True, exist_ok=True)
    with (root / f".bin-{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            part = target.with_name(f".{program.name}.{os.getpid()}.part")
            shutil.copyfile(program, part)
            part.chmod(0o755)
            part.rename(target)
    return target
