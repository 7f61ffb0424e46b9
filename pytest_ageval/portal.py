"""One event loop for the whole process, in a background thread, and the way to it from ordinary code.

Fixtures, hooks and test bodies are synchronous; boxes, executors and the phases are not. `run` takes
a coroutine to the loop and waits for it. A Ctrl-C while waiting cancels the coroutine, waits until it
has cleaned up, and is raised again.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

#: Hooks and blocking SDKs run in threads and may wait for the loop, which may need a thread in turn:
#: the pool must be larger than the number of attempts that one process holds.
THREADS = 256

#: Seconds that a cancelled coroutine gets to clean up before `run` gives up on it.
CANCEL_GRACE = 10.0

_lock = threading.Lock()
_closers: list[Callable[[], Coroutine[Any, Any, None]]] = []
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def loop() -> asyncio.AbstractEventLoop:
    """The process's event loop, started on first use."""
    global _loop, _thread
    with _lock:
        if _loop is None or _loop.is_closed():
            ready = threading.Event()
            _loop = asyncio.new_event_loop()
            _loop.set_default_executor(ThreadPoolExecutor(THREADS, "ageval"))
            _thread = threading.Thread(target=_serve, args=(_loop, ready), name="ageval-loop", daemon=True)
            _thread.start()
            ready.wait()
            atexit.register(_stop)
        return _loop


def _serve(served: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
    asyncio.set_event_loop(served)
    served.call_soon(ready.set)
    served.run_forever()


def at_exit(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Have `close` awaited on the loop before it ends with the process."""
    _closers.append(close)


async def _close_all() -> None:
    for close in _closers:
        with contextlib.suppress(Exception):
            await close()


def _stop() -> None:
    if _loop is not None and _loop.is_running():
        with contextlib.suppress(Exception):
            submit(_close_all()).result(CANCEL_GRACE)
        _loop.call_soon_threadsafe(_loop.stop)
    if _thread is not None:
        _thread.join(timeout=2)


def submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Start `coroutine` on the loop; the future is for other threads than the loop's."""
    return asyncio.run_coroutine_threadsafe(coroutine, loop())


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` on the loop and return its result or raise its exception.

    Must not be called from the loop's own thread (RuntimeError).
    """
    if threading.current_thread() is _thread:
        coroutine.close()
        raise RuntimeError("portal.run was called on the event loop itself; await instead")
    future = submit(coroutine)
    try:
        return future.result()
    except BaseException:
        if not future.done():
            _abandon(future)
        raise


def _abandon(future: Future[Any]) -> None:
    """Cancel, and give the coroutine's own clean-up a bounded time."""
    future.cancel()
    # The concurrent future counts as cancelled at once; the task behind it has still to unwind.
    settled = threading.Event()

    async def settle() -> None:
        current = asyncio.current_task()
        waiting = [task for task in asyncio.all_tasks() if task is not current and task.cancelling()]
        if waiting:
            await asyncio.wait(waiting, timeout=CANCEL_GRACE)
        settled.set()

    submit(settle())
    settled.wait(CANCEL_GRACE + 1)
