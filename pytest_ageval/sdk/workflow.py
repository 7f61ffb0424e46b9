"""Many things at once, with a bound, and with nobody left running afterwards."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

T = TypeVar("T")


async def bounded_gather(
    aws: Sequence[Awaitable[T]], *, limit: int, timeout: float | None = None
) -> list[T | BaseException]:
    """Await all of `aws`, at most `limit` at a time; the results are in the order of `aws`.

    An exception takes the place of its result. After `timeout` seconds those that have not finished
    are cancelled and get a TimeoutError. When the caller is cancelled, so are all of them. In every
    case none is running when this returns. Raises ValueError for a limit below 1.
    """
    if limit < 1:
        _discard(aws)
        raise ValueError("limit must be at least 1")
    turn = asyncio.Semaphore(limit)

    async def one(awaitable: Awaitable[T]) -> T:
        try:
            await turn.acquire()
        except asyncio.CancelledError:
            _discard([awaitable])
            raise
        try:
            return await awaitable
        finally:
            turn.release()

    tasks = [asyncio.ensure_future(one(awaitable)) for awaitable in aws]
    if not tasks:
        return []
    try:
        finished, _ = await asyncio.wait(tasks, timeout=timeout)
    finally:
        await _end(tasks)
        _discard(aws)
    return [_outcome(task) if task in finished else TimeoutError() for task in tasks]


def _outcome(task: asyncio.Task[T]) -> T | BaseException:
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    return task.result() if error is None else error


async def first_success(
    aws: Iterable[Coroutine[Any, Any, T]],
    *,
    limit: int | None = None,
    accept: Callable[[T], bool] | None = None,
) -> T:
    """The first result that is not an exception and that `accept` (if given) takes.

    At most `limit` run at a time (None: all). The others are cancelled and awaited before this
    returns. Raises RuntimeError("no acceptable result") when there is none, ValueError for a limit
    below 1.
    """
    waiting = list(aws)
    if limit is not None and limit < 1:
        _discard(waiting)
        raise ValueError("limit must be at least 1")
    started: list[asyncio.Task[T]] = []
    running: set[asyncio.Task[T]] = set()
    try:
        while waiting or running:
            while waiting and (limit is None or len(running) < limit):
                task = asyncio.ensure_future(waiting.pop(0))
                started.append(task)
                running.add(task)
            finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            # In the order of the input, so that two that finish together give the same winner.
            for task in (one for one in started if one in finished):
                if task.cancelled() or task.exception() is not None:
                    continue
                if accept is None or accept(task.result()):
                    return task.result()
        raise RuntimeError("no acceptable result")
    finally:
        _discard(waiting)
        await _end(started)


async def collect_results(values: Sequence[Any]) -> list[Any]:
    """Await one value after the other; what cannot be awaited is taken as it is."""
    return [await value if inspect.isawaitable(value) else value for value in values]


def _discard(aws: Iterable[Awaitable[Any]]) -> None:
    """Close coroutines that were never started, which Python would otherwise warn about."""
    for awaitable in aws:
        if inspect.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
            awaitable.close()


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel what still runs, and wait until it has really ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
