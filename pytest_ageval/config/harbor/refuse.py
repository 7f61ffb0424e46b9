"""What Harbor reads and we do not do: refused when the task is collected, with the reason.

The list is in docs/how-to/harbor.md.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ageval.config.harbor.formats import EnvironmentTable, HarborFile, VerifierTable
    from pytest_ageval.config.harbor.toml import TomlSource

REFUSED = "harbor_unsupported"


def check(file: HarborFile, root: Path, source: TomlSource) -> None:
    """Raise ConfigError for what the task asks and does not get, and for what contradicts itself."""
    _environment(file.environment, source, "/environment")
    _phase_network(file, source)
    _verifier(file.verifier, source, "/verifier")
    _no_trajectory(root, root, source)
    _artifacts(file, source)
    seen: set[str] = set()
    for index, step in enumerate(file.steps):
        at = f"/steps/{index}"
        name = unicodedata.normalize("NFC", step.name).casefold()
        if name in seen:
            raise source.error("invalid_schema", f"two steps are called {step.name!r}", f"{at}/name")
        seen.add(name)
        _verifier(step.verifier, source, f"{at}/verifier")
        for phase, table in (("agent", step.agent), ("verifier", step.verifier)):
            if table.network_mode is not None or table.allowed_hosts is not None:
                raise _network_error(source, f"{at}/{phase}/network_mode")
        _no_trajectory(root / "steps" / step.name, root, source)
    environment = root / "environment"
    if file.environment.docker_image is None and not environment.is_dir():
        raise source.error(
            "missing_reference",
            "there is neither a directory environment/ nor environment.docker_image",
            "/environment",
        )


def _environment(table: EnvironmentTable, source: TomlSource, at: str) -> None:
    if table.os.lower() != "linux":
        raise source.error(REFUSED, f"os {table.os!r}: boxes are Linux", f"{at}/os")
    if table.tpu is not None:
        raise source.error(REFUSED, "tpu: no kind of box has one", f"{at}/tpu")
    if table.skills_dir:
        raise source.error(
            REFUSED, "skills_dir: skills in the image are not passed on to agents", f"{at}/skills_dir"
        )
    if table.network_mode == "allowlist" and not table.allowed_hosts:
        raise source.error("invalid_schema", "allowlist needs allowed_hosts", f"{at}/network_mode")
    if table.allowed_hosts and table.network_mode != "allowlist":
        raise source.error(
            "invalid_schema", "allowed_hosts needs network_mode allowlist", f"{at}/allowed_hosts"
        )
    for index, host in enumerate(table.allowed_hosts or ()):
        if "/" in host or ":" in host:
            raise source.error(
                REFUSED,
                f"{host!r}: the proxy that enforces the list knows host names, not networks",
                f"{at}/allowed_hosts/{index}",
            )


def _phase_network(file: HarborFile, source: TomlSource) -> None:
    baseline = file.environment.network_mode or "public"
    for name, table in (("agent", file.agent), ("verifier", file.verifier)):
        if table.allowed_hosts is not None or table.network_mode not in (None, baseline):
            raise _network_error(source, f"/{name}/network_mode")


def _network_error(source: TomlSource, pointer: str) -> Exception:
    return source.error(
        REFUSED,
        "the network of a box does not change between phases",
        pointer,
        "use environment.network_mode; a verifier with a box of its own has verifier.environment",
    )


def _verifier(table: VerifierTable, source: TomlSource, at: str) -> None:
    if table.environment is None:
        return
    if table.environment_mode == "shared":
        raise source.error(
            "invalid_schema",
            "environment_mode is shared, and there is a verifier.environment",
            f"{at}/environment_mode",
        )
    _environment(table.environment, source, f"{at}/environment")


def _no_trajectory(directory: Path, root: Path, source: TomlSource) -> None:
    if (directory / "trajectory.json").is_file():
        where = (directory / "trajectory.json").relative_to(root)
        raise source.error(REFUSED, f"{where}: agents do not take over another one's conversation")


def _artifacts(file: HarborFile, source: TomlSource) -> None:
    places = [("/artifacts", file.artifacts)]
    places += [(f"/steps/{index}/artifacts", step.artifacts) for index, step in enumerate(file.steps)]
    for at, rows in places:
        for index, row in enumerate(rows):
            text = row if isinstance(row, str) else row.source
            if ".." in PurePosixPath(text).parts:
                raise source.error("path_outside_package", f"'..' in {text!r}", f"{at}/{index}")
            if isinstance(row, str):
                continue
            if row.service not in (None, "main") and not text.startswith("/"):
                raise source.error(
                    "invalid_schema", "a path of a service must be absolute", f"{at}/{index}/source"
                )
            dest = PurePosixPath(row.destination or "x")
            if dest.is_absolute() or ".." in dest.parts or str(dest) == "manifest.json":
                raise source.error(
                    "path_outside_package",
                    f"{row.destination!r} must be relative, without '..', and not manifest.json",
                    f"{at}/{index}/destination",
                )
