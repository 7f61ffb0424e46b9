"""The service ``main`` of a compose file, for boxes that have their image's own layout.

Our container takes over what it says of volumes, networks, names of hosts, limits and capabilities.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ageval_boxes.docker_box._checks import bind_source, check_service
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from ageval_boxes.docker_box._engine import Engine
    from ageval_boxes.docker_box._options import DockerOptions

#: Paths whose contents an attempt fetches itself, whatever directory of the host was meant.
_LOGS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
_UNITS = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def infrastructure(directory: Path, options: DockerOptions, resources: Mapping[str, Any]) -> dict[str, str]:
    """The variables that Harbor gives a compose file of itself."""
    found = {"CONTEXT_DIR": str(directory), "MAIN_IMAGE_NAME": options.named_image or "made-by-the-box"}
    if options.named_image:
        found["PREBUILT_IMAGE_NAME"] = options.named_image
    if resources.get("cpus"):
        found["CPUS"] = f"{float(resources['cpus']):g}"
    if resources.get("memory_mb"):
        found["MEMORY"] = f"{int(float(resources['memory_mb']))}M"
    for path in _LOGS:
        name = {"/logs/agent": "AGENT_LOGS", "/logs/verifier": "VERIFIER_LOGS"}.get(path, "ARTIFACTS")
        found |= {f"ENV_{name}_PATH": path, f"HOST_{name}_PATH": path}
    return found


def networks(main: Mapping[str, Any], project: str, default: str) -> dict[str, list[str]]:
    """The networks to join, each with the names that the container has there besides ``main``."""
    given = main.get("networks") or {"default": None}
    rows = dict.fromkeys(given) if isinstance(given, list) else given
    found = {}
    for name, row in rows.items():
        joined = default if name == "default" else f"{project}_{name}"
        found[joined] = ["main", *((row or {}).get("aliases") or ())]
    return found


def host_config(
    engine: Engine, main: Mapping[str, Any], project: str, directory: Path, labels: Mapping[str, str]
) -> tuple[dict[str, Any], list[Any]]:
    """Arguments of the SDK's host config, and mounts. Raises BoxError for what reaches this machine.

    Volumes that no service has yet are made, with `labels`. Blocks.
    """
    volumes = [row for row in main.get("volumes") or () if _target(row) not in _LOGS]
    check_service("main", {**main, "volumes": volumes}, directory)
    found: dict[str, Any] = {}
    if main.get("extra_hosts"):
        found["extra_hosts"] = _extra_hosts(main["extra_hosts"])
    if main.get("shm_size"):
        found["shm_size"] = _bytes(main["shm_size"])
    if main.get("tmpfs"):
        rows = main["tmpfs"] if isinstance(main["tmpfs"], list) else [main["tmpfs"]]
        found["tmpfs"] = dict(str(row).partition(":")[::2] for row in rows)
    if main.get("ulimits"):
        found["ulimits"] = [_ulimit(name, row) for name, row in main["ulimits"].items()]
    mounts = [_mount(row, project) for row in volumes]
    for mount in mounts:
        if mount["Type"] == "volume" and mount["Source"]:
            engine.client.api.create_volume(mount["Source"], labels=dict(labels))
    return found, mounts


def _extra_hosts(given: Any) -> list[str]:
    rows = [f"{k}:{v}" for k, v in given.items()] if isinstance(given, dict) else [str(row) for row in given]
    rows = [row.replace("=", ":", 1) if ":" not in row.partition("=")[0] else row for row in rows]
    for row in rows:
        if row.endswith(":host-gateway"):
            raise BoxError("environment_compose_failed", f"main may not have extra_hosts: {row}")
    return rows


def _bytes(text: Any) -> int:
    word = str(text).strip().lower().removesuffix("ib").removesuffix("b")
    if word and word[-1] in _UNITS:
        return int(float(word[:-1]) * _UNITS[word[-1]])
    return int(float(word))


def _ulimit(name: str, row: Any) -> Any:
    from docker.types import Ulimit

    pair = row if isinstance(row, dict) else {"soft": row, "hard": row}
    return Ulimit(name=name, soft=int(pair["soft"]), hard=int(pair["hard"]))


def _target(row: Any) -> str:
    if isinstance(row, dict):
        return str(row["target"]).rstrip("/")
    parts = str(row).split(":")
    return (parts[1] if len(parts) > 1 else parts[0]).rstrip("/")


def _mount(row: Any, project: str) -> Any:
    """A mount of the SDK. A directory of the task is seen, never written."""
    from docker.types import Mount

    if isinstance(row, dict):
        kind, source, target = row.get("type"), row.get("source"), str(row["target"])
        read_only = bool(row.get("read_only"))
    else:
        parts = str(row).split(":")
        source, target = (parts[0], parts[1]) if len(parts) > 1 else (None, parts[0])
        read_only = "ro" in (parts[2].split(",") if len(parts) > 2 else ())
        kind = "bind" if bind_source(row) else "volume"
    if kind == "bind":
        if not read_only:
            raise BoxError(
                "environment_compose_failed",
                f"main mounts {source} for writing: the agent would change the task; add :ro",
            )
        return Mount(target, str(Path(str(source)).resolve()), type="bind", read_only=True)
    if kind == "tmpfs":
        return Mount(target, None, type="tmpfs")
    name = f"{project}_{source}" if source else None
    return Mount(target, name, type="volume", read_only=read_only)
