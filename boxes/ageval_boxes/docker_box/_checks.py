"""What a compose service may not ask for: by it this machine would be reached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_ageval.errors import BoxError

#: Capabilities by which a service would reach this machine or the attempt.
_CAPABLE = {
    "ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "SYS_PTRACE", "DAC_READ_SEARCH", "NET_ADMIN", "BPF",
}  # fmt: skip


def _reaches_out(key: str, value: Any) -> bool:
    """With this setting a service would have this machine."""
    if key in ("pid", "ipc", "userns_mode", "uts", "cgroup"):
        return bool(value == "host")
    if key == "network_mode":
        return str(value) == "host" or str(value).startswith("container:")
    if key == "cap_add":
        return any(str(name).upper().removeprefix("CAP_") in _CAPABLE for name in value or ())
    if key == "security_opt":
        return any("unconfined" in str(row) for row in value or ())
    return key in ("privileged", "devices") and bool(value)


def mapping(labels: Any) -> dict[str, str]:
    """Labels, however they were written."""
    if isinstance(labels, list):
        return {key: value for key, _, value in (str(row).partition("=") for row in labels)}
    return {str(key): str(value) for key, value in (labels or {}).items()}


def check_service(name: str, service: Mapping[str, Any], directory: Path) -> None:
    """Raise BoxError ``environment_compose_failed`` for a service that asks for more than it may have."""
    for key, value in service.items():
        if _reaches_out(key, value):
            raise BoxError(
                "environment_compose_failed",
                f"the service {name} may not have {key}: {json.dumps(value)}",
            )
    for row in service.get("volumes") or ():
        source = bind_source(row)
        if source is not None and not Path(source).resolve().is_relative_to(directory.resolve()):
            raise BoxError(
                "environment_compose_failed",
                f"the service {name} may not mount {source}: it lies outside of {directory}",
            )


def bind_source(row: Any) -> str | None:
    """The directory of the host that a row of ``volumes`` mounts, if it is one."""
    if isinstance(row, dict):
        return str(row.get("source")) if row.get("type") == "bind" else None
    source = str(row).split(":", 1)[0]
    return source if source.startswith(("/", ".", "~")) and ":" in str(row) else None
