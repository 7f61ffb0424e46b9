"""One event loop for the whole process, in a background thread, and the way to it from ordinary code.

Fixtures, hooks and test bodies are synchronous; boxes, executors and the phases are not. `run` takes
a coroutine to the loop and waits for it. A Ctrl-C while waiting cancels the coroutine, waits until it
has cleaned up, and is raised again.

Other people's code runs here (hooks, boxes, executors), so nothing that it raises may end the loop:
`guard` and `in_thread` turn SystemExit, KeyboardInterrupt and pytest's own outcomes into AgevalError.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from pytest_ageval.errors import AgevalError

T = TypeVar("T")

#: Blocking SDKs run in threads of this pool: more than the attempts that one process holds.
THREADS = 256

#: Seconds that a cancelled coroutine gets to clean up before `run` gives up on it.
CANCEL_GRACE = 10.0


class _Portal:
    """The loop, its thread, and what is awaited before it ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.closers: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self.ending = False
        self.pool = ThreadPoolExecutor(THREADS, "ageval")
        self.loop.set_default_executor(self.pool)
        ready = threading.Event()
        self.thread = threading.Thread(target=self._serve, args=(ready,), name="ageval-loop", daemon=True)
        self.thread.start()
        ready.wait()

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(ready.set)
        while not self.ending:
            # asyncio raises SystemExit and KeyboardInterrupt of a task out of the loop; all that
            # waits for the loop would wait for ever.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()

    def stop(self) -> None:
        """Close what is open, and end the thread."""
        if self.ending or not self.thread.is_alive():
            return
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._close_all(), self.loop).result(CANCEL_GRACE)
        self.ending = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=2)
        self.pool.shutdown(wait=False, cancel_futures=True)
        if not self.thread.is_alive():
            self.loop.close()

    async def _close_all(self) -> None:
        for close in self.closers:
            with contextlib.suppress(Exception):
                await close()


_lock = threading.Lock()
_portal: _Portal | None = None


def _current() -> _Portal:
    global _portal
    with _lock:
        if _portal is None or _portal.ending:
            _portal = _Portal()
        return _portal


def loop() -> asyncio.AbstractEventLoop:
    """The process's event loop, started on first use."""
    return _current().loop


def at_exit(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Have `close` awaited on the loop before it ends."""
    _current().closers.append(close)


def shutdown() -> None:
    """End the loop and everything that waits for its end. A later use starts a new one."""
    if _portal is not None:
        _portal.stop()


def _forget() -> None:
    """A forked child has no thread that runs the loop."""
    global _portal, _lock
    _portal, _lock = None, threading.Lock()


atexit.register(shutdown)
os.register_at_fork(after_in_child=_forget)


def submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Start `coroutine` on the loop; the future is for other threads than the loop's."""
    return asyncio.run_coroutine_threadsafe(guard(coroutine), loop())


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` on the loop and return its result or raise its exception.

    Must not be called from the loop's own thread (RuntimeError).
    """
    if _portal is not None and threading.current_thread() is _portal.thread:
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


async def guard(work: Awaitable[T]) -> T:
    """Await `work`; what must not reach the event loop becomes AgevalError ``exit_refused``."""
    try:
        return await work
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        raise _refused(error) from error


def _refused(error: BaseException) -> AgevalError:
    """SystemExit, KeyboardInterrupt or an outcome of pytest (``pytest.skip()``), raised where none counts."""
    return AgevalError("exit_refused", f"{type(error).__name__} was raised: {error}")


async def in_thread(function: Callable[..., T], **arguments: Any) -> T:
    """Call a function of somebody else's in a thread of its own, which does not hold up the exit.

    Not in the pool: a function that never returns would keep the interpreter from ending.
    """
    here = asyncio.get_running_loop()
    done: asyncio.Future[T] = here.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not done.done():
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]
            else:
                done.set_exception(error)

    def call() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = function(**arguments)
        except Exception as error:
            failure = error
        except BaseException as error:
            failure = _refused(error)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            here.call_soon_threadsafe(settle, result, failure)

    # In the context of the caller, so that what the function logs is known to be the attempt's.
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(call,), name="ageval-hook", daemon=True).start()
    return await done
