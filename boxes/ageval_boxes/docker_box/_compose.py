"""Compose services beside the container of an attempt, by the Compose CLI.

The task's file is resolved by the CLI, then changed so that two attempts can run at once and none
reaches this machine: no fixed names, no published ports, our labels on everything, no privileges and
no host directory outside the task's ``environment/``. The service ``main`` is the attempt's own
container and therefore left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ageval_boxes.docker_box._checks import check_service, mapping
from ageval_boxes.docker_box._engine import Engine, call
from pytest_ageval.errors import BoxError

NAMES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
MAIN = "main"
#: Seconds that the CLI may take to make and start the services, builds included.
UP_SECONDS = 3600.0
#: The CLI refuses a service without an image; ``main`` may say nothing but what it depends on.
_MAIN_ALONE = json.dumps({"services": {MAIN: {"image": "made-by-the-box"}}})
_PROJECT = "com.docker.compose.project"
_SERVICE = "com.docker.compose.service"


def find(task_root: Path | None) -> Path | None:
    """The compose file of a task, if it has one."""
    if task_root is None:
        return None
    found = (task_root / "environment" / name for name in NAMES)
    return next((path for path in found if path.is_file()), None)


def isolated(
    document: dict[str, Any], directory: Path, labels: Mapping[str, str], *, internal: bool = False
) -> dict[str, Any]:
    """A resolved compose document as an attempt may run it; with `internal` its networks have no way out.

    Raises BoxError ``environment_compose_failed`` for a service that asks for more.
    """
    services = {name: dict(row) for name, row in (document.get("services") or {}).items() if name != MAIN}
    volumes = {name: _own(row, labels) for name, row in (document.get("volumes") or {}).items()}
    networks = {name: _own(row, labels) for name, row in (document.get("networks") or {}).items()}
    for name, service in services.items():
        check_service(name, service, directory)
        for key in ("container_name", "ports", "profiles"):
            service.pop(key, None)
        service["labels"] = {**mapping(service.get("labels")), **labels}
        waits = service.get("depends_on")
        if isinstance(waits, dict):
            service["depends_on"] = {key: row for key, row in waits.items() if key != MAIN}
        elif isinstance(waits, list):
            service["depends_on"] = [key for key in waits if key != MAIN]
        if not service.get("depends_on"):
            service.pop("depends_on", None)
    networks.setdefault("default", {"labels": dict(labels)})
    if internal:
        # Without the option the host itself would be reached at the network's gateway.
        closed = {"internal": True, "driver_opts": {"com.docker.network.bridge.inhibit_ipv4": "true"}}
        networks = {name: {**row, **closed} for name, row in networks.items()}
    kept: dict[str, Any] = {
        key: document[key] for key in ("version", "secrets", "configs") if key in document
    }
    return {**kept, "services": services, "networks": networks, "volumes": volumes}


def _own(row: Mapping[str, Any] | None, labels: Mapping[str, str]) -> dict[str, Any]:
    found = dict(row or {})
    if found.get("external"):
        return found
    found.pop("name", None)
    found["labels"] = {**mapping(found.get("labels")), **labels}
    return found


class Project:
    """The services of one attempt."""

    def __init__(
        self,
        engine: Engine,
        file: Path,
        name: str,
        work_dir: Path,
        labels: Mapping[str, str],
        variables: Mapping[str, str],
        *,
        internal: bool = False,
    ) -> None:
        self._engine = engine
        self.file = file
        self.name = name
        self._work = work_dir
        self._labels = labels
        self._variables = variables
        self.internal = internal
        self._cli: list[str] = []
        #: Services whose health is waited for, and the last that their check said.
        self.waiting: dict[str, str] = {}
        #: Container ids by service.
        self.containers: dict[str, str] = {}
        #: What the file says of the attempt's own container.
        self.main: dict[str, Any] = {}
        #: The network that the attempt's container joins.
        self.network = f"{name}_default"

    async def up(self) -> None:
        """Start all services and wait until those with a health check are healthy."""
        import yaml

        self._cli = list(await _find_cli())
        directory = self.file.parent
        first = self._work / "compose-main.json"
        await asyncio.to_thread(first.write_text, _MAIN_ALONE, "utf-8")
        files = ("-f", str(first), "-f", str(self.file))
        text = await self._run(*files, "--project-directory", str(directory), "config")
        resolved = yaml.safe_load(text) or {}
        self.main = dict((resolved.get("services") or {}).get(MAIN) or {})
        document = isolated(resolved, directory, self._labels, internal=self.internal)
        if not document["services"]:
            self.network = "bridge"
            return
        file = self._work / "compose.json"
        await asyncio.to_thread(file.write_text, json.dumps(document), "utf-8")
        place = ("-f", str(file), "--project-directory", str(directory))
        await self._run(*place, "up", "-d")
        await self._choose_network()
        await self._wait(set(document["services"]))

    async def find(self) -> None:
        """Know the services again that another process started with `up`."""
        await self._choose_network()
        query = {"label": f"{_PROJECT}={self.name}"}
        for row in await call(self._engine.client.api.containers, all=True, filters=query):
            self.containers[row["Labels"][_SERVICE]] = str(row["Id"])

    async def _choose_network(self) -> None:
        """The default network; where no service uses it, the first that there is."""
        query = {"label": f"{_PROJECT}={self.name}"}
        rows = await call(self._engine.client.api.networks, filters=query)
        names = sorted(row["Name"] for row in rows)
        if names and self.network not in names:
            self.network = names[0]

    async def _wait(self, services: set[str]) -> None:
        api = self._engine.client.api
        query = {"label": f"{_PROJECT}={self.name}"}
        while True:
            waiting = False
            for row in await call(api.containers, all=True, filters=query):
                service = row["Labels"][_SERVICE]
                found = await call(api.inspect_container, row["Id"])
                self.containers[service] = str(row["Id"])
                waiting |= await self._starting(service, found)
            if not waiting and services <= self.containers.keys():
                return
            await asyncio.sleep(0.25)

    async def _starting(self, service: str, found: Mapping[str, Any]) -> bool:
        """It is not healthy yet. BoxError when it will not be."""
        state = found["State"]
        health = state.get("Health") or {}
        if health.get("Status") == "unhealthy":
            log = (health.get("Log") or [{}])[-1]
            raise BoxError(
                "environment_compose_failed",
                f"the service {service} is unhealthy: {str(log.get('Output', '')).strip()[-500:]}",
                detail=await self._logs(found["Id"]),
            )
        if state["Status"] == "exited" and state["ExitCode"] != 0:
            raise BoxError(
                "environment_compose_failed",
                f"the service {service} ended with exit code {state['ExitCode']}",
                detail=await self._logs(found["Id"]),
            )
        self.waiting.pop(service, None)
        starting = bool(health) and health.get("Status") == "starting"
        if starting:
            log = (health.get("Log") or [{}])[-1]
            self.waiting[service] = str(log.get("Output", "")).strip()[-500:] or "its check has not ended yet"
        return starting or state["Status"] in ("created", "restarting")

    async def _logs(self, container: str) -> str | None:
        text = await call(self._engine.client.api.logs, container, tail=50)
        return bytes(text).decode("utf-8", "replace")[-4000:] or None

    async def container(self, service: str) -> str:
        """The id of a service's container. Raises BoxError ``environment_service_missing``."""
        found = self.containers.get(service)
        if found is None:
            known = ", ".join(sorted(self.containers)) or "none"
            raise BoxError("environment_service_missing", f"there is no service {service}; known: {known}")
        return found

    async def _run(self, *arguments: str) -> str:
        command = [*self._cli, "-p", self.name, *arguments]
        code, out, err = await _run(command, UP_SECONDS, self._variables)
        if code != 0:
            full = "no space left on device" in err.lower()
            raise BoxError(
                "environment_disk_full" if full else "environment_compose_failed",
                f"{' '.join(self._cli)} {arguments[-1]} ended with exit code {code}: {err.strip()[-1000:]}",
            )
        return out


#: The CLI that was found; it is asked for its version once in a process.
_cli: dict[str, tuple[str, ...]] = {}


async def _find_cli() -> tuple[str, ...]:
    path = os.environ.get("PATH", "")
    if path in _cli:
        return _cli[path]
    for words in (("docker", "compose"), ("docker-compose",)):
        with contextlib.suppress(OSError):
            code, _out, _err = await _run([*words, "version"], 30)
            if code == 0:
                _cli[path] = words
                return words
    raise BoxError(
        "environment_compose_failed",
        "the task has compose services, and there is no Compose CLI here; install docker compose",
    )


async def _run(
    argv: list[str], seconds: float, variables: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run the CLI; `variables` are those that the file may interpolate."""
    # Not our environment: a compose file interpolates variables, and ours hold keys.
    names = ("PATH", "HOME", "LANG", "TMPDIR")
    env = {k: v for k, v in os.environ.items() if k in names or k.startswith(("DOCKER_", "COMPOSE_HTTP"))}
    process = await asyncio.create_subprocess_exec(
        *argv,
        env={**(variables or {}), **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        return 124, "", f"no end after {seconds:.0f} seconds"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return process.returncode or 0, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
