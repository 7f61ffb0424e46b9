"""What is kept of a step: ``/logs/artifacts``, the declared paths, and a manifest of both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_ageval.attempt.harvest import ABSENT, accept
from pytest_ageval.box import WORKSPACE, Box
from pytest_ageval.config.harbor.document import AGENT_LOGS, ARTIFACTS, MAIN, HarborArtifact
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.config.harbor.document import HarborStep


@dataclass(frozen=True, slots=True)
class Kept:
    """A path of the box and where its copy is on the host."""

    source: str
    path: Path
    service: str


async def collect(attempt: Attempt, step: HarborStep) -> list[Kept]:
    """Run the collect commands and fetch the artifacts: of the box first, then of its services.

    Best effort, as the format says: what fails is a row ``failed`` of the manifest.
    """
    directory = attempt.evidence.layout.harbor_artifacts(step.name)
    rows = [HarborArtifact(ARTIFACTS), HarborArtifact(AGENT_LOGS, destination="agent-logs"), *step.artifacts]
    kept: list[Kept] = []
    manifest: list[dict[str, Any]] = []
    for of_service in (False, True):
        for hook in step.verifier.collect:
            if (hook.service != MAIN) is of_service:
                await _command(attempt, hook, manifest)
        for row in rows:
            if (row.service not in (None, MAIN)) is of_service:
                await _fetch(attempt, row, directory, kept, manifest)
    await asyncio.to_thread(attempt.evidence.write_harbor_manifest, step.name, manifest)
    return kept


async def _command(attempt: Attempt, hook: Any, manifest: list[dict[str, Any]]) -> None:
    service = None if hook.service == MAIN else hook.service
    try:
        done = await attempt.raw_box.exec(
            ["sh", "-c", hook.command], timeout=hook.timeout_sec, user=hook.user, service=service
        )
        status = "ok" if done.ok else "failed"
        told = None if done.ok else (done.stderr or done.stdout)[-300:]
    except BoxError as error:
        status, told = "failed", f"{error.title}: {error.message}"
    row = {"command": hook.command, "service": hook.service, "status": status}
    manifest.append(row if told is None else {**row, "message": attempt.redactor.text(told)})


async def _fetch(
    attempt: Attempt, row: HarborArtifact, directory: Path, kept: list[Kept], manifest: list[dict[str, Any]]
) -> None:
    absolute = row.source if row.source.startswith("/") else f"{WORKSPACE}/{row.source}"
    service = row.service or MAIN
    below = row.destination or absolute.lstrip("/")
    dest = directory / PurePosixPath(below)
    entry: dict[str, Any] = {"source": row.source, "destination": below, "service": service}
    if row.exclude:
        entry["exclude"] = list(row.exclude)
    if dest.exists():
        manifest.append({**entry, "status": "skipped"})
        return
    dest.parent.mkdir(parents=True, exist_ok=True)
    try:
        await attempt.raw_box.download(absolute, dest, service=service)
        there = await asyncio.to_thread(accept, attempt, dest, row.exclude)
        status = "ok" if there else "failed"
        if there and dest.is_dir() and not any(dest.iterdir()):
            status = "empty"
    except BoxError as error:
        status = "failed"
        if error.title not in ABSENT:
            entry["message"] = error.message
    if status == "ok":
        entry["type"] = "directory" if dest.is_dir() else "file"
        kept.append(Kept(absolute, dest, service))
    manifest.append({**entry, "status": status})


async def put_back(box: Box, kept: list[Kept]) -> None:
    """Give a separate verifier the artifacts, at the paths that they had."""
    for item in kept:
        parent = str(PurePosixPath(item.source).parent)
        made = await box.exec(["/bin/mkdir", "-p", "--", parent], user="root", timeout=60)
        if not made.ok:
            raise BoxError("environment_upload_failed", f"{parent}: {made.stderr.strip()}")
        await box.upload(item.path, item.source, service=MAIN)
