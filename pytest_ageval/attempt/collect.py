"""``evaluation.collect``: commands run in the box and paths fetched from it, before gold goes up."""

from __future__ import annotations

import asyncio
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pytest_ageval.attempt.harvest import accept
from pytest_ageval.box import WORKSPACE
from pytest_ageval.errors import BoxError

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.config.locked import Collect


async def collect(attempt: Attempt) -> None:
    """First the box's own rows, then those of its services; commands before copies."""
    rows = list(enumerate(attempt.locked.evaluation.collect))
    if not rows:
        return
    entries = []
    for of_service in (False, True):
        chosen = [(index, row) for index, row in rows if bool(row.service) is of_service]
        for _, row in chosen:
            if row.command:
                await _command(attempt, row)
        for index, row in chosen:
            if row.path:
                entries.append(await _copy(attempt, index, row))
    attempt.evidence.write_collected(entries)
    attempt.fact("verifier_collected", {"entries": entries})


async def _command(attempt: Attempt, row: Collect) -> None:
    done = await attempt.raw_box.exec(
        ["sh", "-c", row.command or ""],
        cwd=WORKSPACE,
        timeout=row.timeout_sec,
        service=row.service,
    )
    if not done.ok:
        raise BoxError(
            "environment_collect_failed",
            f"the collect command on {row.service or 'the box'} exited {done.exit_code}",
            phase="evaluate",
            detail=done.stderr[-300:] or None,
        )


async def _copy(attempt: Attempt, index: int, row: Collect) -> dict[str, object]:
    path = PurePosixPath(row.path or "")
    dest = attempt.evidence.layout.collected_entry(index, path.name)
    dest.parent.mkdir(parents=True, exist_ok=True)
    try:
        await attempt.raw_box.download(str(path), dest, service=row.service)
    except BoxError as error:
        if error.title != "environment_download_missing":
            raise
        raise BoxError(
            "environment_collect_missing",
            f"evaluation.collect[{index}]: {path} is not in {row.service or 'the box'}",
            phase="evaluate",
        ) from None
    if not await asyncio.to_thread(accept, attempt, dest, row.exclude):
        raise BoxError(
            "environment_collect_missing",
            f"evaluation.collect[{index}]: {path} is a symbolic link",
            phase="evaluate",
        )
    return {"index": index, "path": str(path), "service": row.service, "name": path.name}
