"""Recording and replaying of one session's calls: which files, and what is normalised in a request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pytest_ageval.box import ARTIFACTS, ENVIRONMENT, EVALUATION, HOME, WORKSPACE
from pytest_ageval.errors import AgevalError, ExecutorError
from pytest_ageval.gateway.canonical import Canonical, Names, Normaliser
from pytest_ageval.gateway.recording import Player, Recorder, recording, scope_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import date
    from pathlib import Path

    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.box import Box
    from pytest_ageval.config.locked import Binding
    from pytest_ageval.evidence.layout import Surface
    from pytest_ageval.gateway.routes import Route


async def load(
    attempt: Attempt, binding: Binding, route: Route, where: str, *, surface: Surface, box: Box | None
) -> None:
    """Have the route's calls recorded or replayed, if that is asked for."""
    options = attempt.options
    root = options.record or options.replay
    if root is None:
        return
    scope = _scope(attempt, binding)
    days: Iterable[date] = ()
    if options.record is not None:
        route.recorder = attempt.tapes.get(binding.role)
        if route.recorder is None:
            route.recorder = Recorder(root, scope, attempt.redactor.text)
            attempt.tapes[binding.role] = route.recorder
            await asyncio.to_thread(route.recorder.begin)
    else:
        found = await asyncio.to_thread(recording, root)
        days = found.days
        route.player = attempt.tapes.get(binding.role)
        if route.player is None:
            route.player = attempt.tapes[binding.role] = Player(found, scope, private=surface == "evaluate")
        attempt.flag("replayed")
    normaliser = Normaliser(_names(attempt, route, where, box), days)

    def normalise(method: str, path: str, body: Any) -> Canonical:
        return Canonical(method, normaliser.text(path), attempt.redactor.value(normaliser.body(body)))

    def missed(message: str) -> None:
        attempt.fail(ExecutorError("replay_miss", attempt.redactor.text(message)))

    def unrecorded(why: str) -> None:
        attempt.fail(AgevalError("record_failed", f"{root}: {attempt.redactor.text(why)}"))

    route.normalise, route.missed, route.unrecorded = normalise, missed, unrecorded


def _scope(attempt: Attempt, binding: Binding) -> Path:
    locked = attempt.locked
    who = binding.agent or binding.executor
    parts = (binding.role, who, binding.model.id, locked.box.kind, str(attempt.identity.index))
    return scope_name(locked.dataset_id, locked.task_id, parts)


def _names(attempt: Attempt, route: Route, where: str, box: Box | None) -> Names:
    """What is called otherwise in another run, and what it is always called."""
    names = {
        where: "<gateway>",
        route.token: "<token>",
        attempt.identity.attempt_id: "<attempt>",
        attempt.identity.run_id: "<run>",
    }
    if box is not None:
        for path in (WORKSPACE, HOME, ARTIFACTS, ENVIRONMENT, EVALUATION):
            names[box.visible_path(path)] = path
            on_host = box.host_path(path)
            if on_host is not None:
                names[str(on_host)] = path
        work = box.spec.work_dir
        names |= {str(work): "<box>", f"{work}/tmp": "/tmp"}  # noqa: S108 - what it is called in a box
    return Names.of(names)
