"""What Harbor reads and we do not do: refused when the task is collected, with the reason.

The list is in docs/how-to/harbor.md.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pytest_ageval.config.harbor import compose, network

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_ageval.config.harbor.formats import AgentTable, EnvironmentTable, HarborFile, VerifierTable
    from pytest_ageval.config.harbor.toml import TomlSource
    from pytest_ageval.errors import ConfigError

REFUSED = "harbor_unsupported"

#: What is refused, and why. Of the service ``main``: `compose.REFUSED`.
REASONS: Mapping[str, str] = {
    "os": "boxes are Linux",
    "tpu": "no kind of box has one",
    "trajectory.json": "agents do not take over another one's conversation",
    "steps.agent.user": "all steps have one box, whose agent has one user",
    "verifier.environment.mcp_servers": "no agent works in the verifier's box",
    "verifier.environment.skills_dir": "no agent works in the verifier's box",
    "tests/docker-compose.yaml": "the verifier's box has no services",
    "network_mode of a phase, beside services": "the services keep the network of the environment",
}


def check(file: HarborFile, root: Path, source: TomlSource) -> None:
    """Raise ConfigError for what the task asks and does not get, and for what contradicts itself."""
    _environment(file.environment, source, "/environment")
    _phase(file, file.agent, root, source, "/agent")
    _verifier(file, file.verifier, root, source, "/verifier")
    _files(root, "tests", root, source)
    _artifacts(file, source)
    seen: set[str] = set()
    for index, step in enumerate(file.steps):
        at = f"/steps/{index}"
        name = unicodedata.normalize("NFC", step.name).casefold()
        if name in seen:
            raise source.error("invalid_schema", f"two steps are called {step.name!r}", f"{at}/name")
        seen.add(name)
        _phase(file, step.agent, root, source, f"{at}/agent")
        _verifier(file, step.verifier, root, source, f"{at}/verifier")
        _files(root / "steps" / step.name, "tests", root, source)
    _one_user(file, source)
    environment = root / "environment"
    if file.environment.docker_image is None and not environment.is_dir():
        raise source.error(
            "missing_reference",
            "there is neither a directory environment/ nor environment.docker_image",
            "/environment",
        )


def _refused(
    source: TomlSource, key: str, pointer: str | None = None, hint: str | None = None
) -> ConfigError:
    return source.error(REFUSED, f"{key}: {REASONS[key]}", pointer, hint)


def _environment(table: EnvironmentTable, source: TomlSource, at: str) -> None:
    if table.os.lower() != "linux":
        raise _refused(source, "os", f"{at}/os")
    if table.tpu is not None:
        raise _refused(source, "tpu", f"{at}/tpu")
    if table.skills_dir and not table.skills_dir.startswith("/"):
        raise source.error("invalid_schema", "skills_dir must be absolute", f"{at}/skills_dir")
    _hosts(table, source, at)


def _hosts(table: network.Table, source: TomlSource, at: str) -> None:
    if table.network_mode == "allowlist" and not table.allowed_hosts:
        raise source.error("invalid_schema", "allowlist needs allowed_hosts", f"{at}/network_mode")
    if table.allowed_hosts and table.network_mode not in (None, "allowlist"):
        raise source.error(
            "invalid_schema", "allowed_hosts needs network_mode allowlist", f"{at}/allowed_hosts"
        )
    for index, host in enumerate(table.allowed_hosts or ()):
        try:
            network.plain_host(host)
        except ValueError as error:
            raise source.error(
                "invalid_schema",
                f"{error}; an entry is a host name, *.name, an address or a network, without a port",
                f"{at}/allowed_hosts/{index}",
            ) from None


def _phase(
    file: HarborFile, table: AgentTable | VerifierTable, root: Path, source: TomlSource, at: str
) -> None:
    """The network of one phase of the agent's box."""
    _hosts(table, source, at)
    found = network.of(table)
    if found in (None, network.of(file.environment) or network.PUBLIC):
        return
    if compose.services(root / "environment"):
        raise _refused(
            source,
            "network_mode of a phase, beside services",
            f"{at}/network_mode",
            "use environment.network_mode; a verifier with a box of its own has verifier.environment",
        )


def _verifier(file: HarborFile, table: VerifierTable, root: Path, source: TomlSource, at: str) -> None:
    separate = table.environment_mode == "separate" or table.environment is not None
    if separate:
        _hosts(table, source, at)
    else:
        _phase(file, table, root, source, at)
    if table.environment is None:
        return
    if table.environment_mode == "shared":
        raise source.error(
            "invalid_schema",
            "environment_mode is shared, and there is a verifier.environment",
            f"{at}/environment_mode",
        )
    for key in ("mcp_servers", "skills_dir"):
        if getattr(table.environment, key):
            raise _refused(source, f"verifier.environment.{key}", f"{at}/environment/{key}")
    _environment(table.environment, source, f"{at}/environment")


def _files(directory: Path, tests: str, root: Path, source: TomlSource) -> None:
    if (directory / "trajectory.json").is_file():
        raise _refused(source, "trajectory.json")
    if compose.find(directory / tests) is not None:
        raise _refused(source, "tests/docker-compose.yaml")


def _one_user(file: HarborFile, source: TomlSource) -> None:
    """The agent's programs are started as the user of the box."""
    users = [step.agent.user if step.agent.user is not None else file.agent.user for step in file.steps]
    for index, user in enumerate(users):
        if user != users[0]:
            raise _refused(source, "steps.agent.user", f"/steps/{index}/agent/user")


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
