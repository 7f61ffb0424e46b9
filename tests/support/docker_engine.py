"""Whether a Docker engine with the base image is here, and what is on it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

BASE = "ageval-attempt:base"


def _why_not() -> str | None:
    try:
        done = subprocess.run(
            ["docker", "image", "inspect", BASE], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no Docker engine: {error}"
    return (
        f"no Docker engine with {BASE} (.ci/services-docker): {done.stderr.strip()}"
        if done.returncode
        else None
    )


_missing = _why_not()
needs_docker: Callable[..., object] = pytest.mark.skipif(_missing is not None, reason=str(_missing))


def on_engine(label: str) -> list[str]:
    """Containers, networks and volumes that carry `label` (``name`` or ``name=value``)."""
    found = []
    for what in (["ps", "-aq", "--no-trunc"], ["network", "ls", "-q"], ["volume", "ls", "-q"]):
        done = subprocess.run(
            ["docker", *what, "--filter", f"label={label}"], capture_output=True, text=True, check=True
        )
        found += [f"{what[0]} {line}" for line in done.stdout.split()]
    return found
