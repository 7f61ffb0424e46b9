"""From synchronous code to the event loop and back."""

import asyncio
import os
import threading

import pytest

from pytest_ageval import portal


def test_results_and_exceptions_come_back():
    async def double(number):
        await asyncio.sleep(0)
        if number < 0:
            raise ValueError("negative")
        return number * 2

    assert portal.run(double(4)) == 8
    with pytest.raises(ValueError, match="negative"):
        portal.run(double(-1))


def test_one_loop_serves_all_threads():
    async def where():
        return threading.current_thread().name

    found = []
    threads = [threading.Thread(target=lambda: found.append(portal.run(where()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["ageval-loop"] * 4


def test_waiting_on_the_loop_itself_is_refused():
    async def inner():
        return None

    async def outer():
        portal.run(inner())

    with pytest.raises(RuntimeError, match="await instead"):
        portal.run(outer())


def test_an_interrupt_lets_the_coroutine_clean_up(monkeypatch):
    cleaned = threading.Event()

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            cleaned.set()

    real = portal.submit

    def submit(coroutine):
        future = real(coroutine)
        if coroutine.__name__ == "work":

            def interrupted(*args):
                raise KeyboardInterrupt

            monkeypatch.setattr(future, "result", interrupted)
        return future

    monkeypatch.setattr(portal, "submit", submit)
    with pytest.raises(KeyboardInterrupt):
        portal.run(work())
    assert cleaned.is_set()


def test_the_end_of_the_loop_leaves_no_file_open():
    portal.shutdown()
    before = sorted(os.listdir("/proc/self/fd"))
    portal.run(asyncio.sleep(0))
    portal.shutdown()
    assert sorted(os.listdir("/proc/self/fd")) == before
