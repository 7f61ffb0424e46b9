"""The controller's view of one other machine: its agent, its copy of the files, and whether it is there."""

from __future__ import annotations

import contextlib
import copy
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_ageval.across import specs
from pytest_ageval.across.packing import pack
from pytest_ageval.across.places import Places
from pytest_ageval.across.shipping import WORDS, Intake
from pytest_ageval.across.specs import HostError

#: Started at the other end; what it imports is installed there.
_AGENT = "from pytest_ageval.across.agent import serve\nserve(channel)\n"

#: Chunks that may be under way to a host.
WINDOW = 32

#: Seconds for a call that does little.
CALL_SECONDS = 60.0

#: Signals that a terminal or a scheduler sends to a whole process group. A connection must outlive them, or
#: no worker could be told to clean up.
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Processes that this thread starts meanwhile do not get the signals of their process group.

    Those that arrive for this process meanwhile come afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Host:
    """One machine. `spec` is the first execution spec that names it; `connect` comes first."""

    def __init__(self, number: int, spec: Any, intake: Intake, spent: Callable[[Host, Any], object]) -> None:
        self.number = number
        self.spec = spec
        self.name = str(spec.ssh)
        self.lost: str | None = None
        self.places = Places("/")
        self.files = 0
        self._intake = intake
        self._spent = spent
        self._group: Any = None
        self._channel: Any = None
        self._based = threading.Event()
        self._gone = False
        self._replies: dict[int, tuple[threading.Event, list[Any]]] = {}
        self._count = 0
        self._window = threading.Semaphore(WINDOW)
        self._lock = threading.Lock()

    def connect(self, run_id: str, budget: bool) -> None:
        """Check what is installed there, and start the agent. Raises `HostError`."""
        import execnet

        specs.probe(self.spec)
        spec = copy.copy(self.spec)
        spec.id, spec.execmodel = f"ageval-host-{self.number}", "thread"
        self._group = execnet.Group(execmodel="thread")
        try:
            with signals_held():
                gateway = self._group.makegateway(spec)
            self._channel = gateway.remote_exec(_AGENT)
            self._channel.send((run_id, self.spec.chdir, budget))
            self._channel.setcallback(self._take, endmarker=None)
        except (OSError, EOFError, self._errors(execnet)) as error:
            raise HostError(f"{self.name}: {error}") from error
        if not self._based.wait(specs.ANSWER_SECONDS) or self._gone:
            raise HostError(f"{self.name}: the run could not begin there{self._why()}")

    @staticmethod
    def _errors(execnet: Any) -> type[Exception]:
        found: type[Exception] = execnet.HostNotFound
        return found

    def _why(self) -> str:
        error = None if self._channel is None else self._channel._getremoteerror()
        return "" if not error else f": {str(error).strip().splitlines()[-1]}"

    def _take(self, message: Any) -> None:
        """In the thread that receives."""
        if message is None:
            self._gone = True
            self._intake.drop()
            self._based.set()
            for event, _ in list(self._replies.values()):
                event.set()
            self._window.release(WINDOW * 1000)
            return
        word, value = message
        if word in WORDS:
            self._intake.take(word, value)
        elif word == "ack":
            self._window.release()
        elif word == "reply":
            event, found = self._replies.get(value[0], (threading.Event(), []))
            found += value[1:]
            event.set()
        elif word == "spent":
            self._spent(self, value)
        elif word == "base":
            self.places = Places(value)
            self._based.set()

    # -- the agent -------------------------------------------------------------------------------

    @property
    def here(self) -> bool:
        """The connection stands, as far as is known."""
        return self._channel is not None and not self._gone and self.lost is None

    def call(self, name: str, *args: Any, seconds: float = CALL_SECONDS) -> Any:
        """Have the agent do something. Raises `HostError`, also when there is no answer."""
        with self._lock:
            self._count += 1
            number = self._count
            event, found = self._replies[number] = (threading.Event(), [])
        try:
            self.send(("call", number, name, args))
            if not event.wait(seconds):
                raise HostError(f"{self.name}: no answer within {seconds:g} s")
        finally:
            del self._replies[number]
        if not found:
            raise HostError(f"{self.name}: the connection is gone{self._why()}")
        if not found[0]:
            raise HostError(f"{self.name}: {found[1]}")
        return found[1]

    def send(self, message: tuple[Any, ...]) -> None:
        """Tell the agent something. Raises `HostError` when the connection is gone."""
        if not self.here:
            raise HostError(f"{self.name}: {self.lost or 'the connection is gone'}")
        try:
            self._channel.send(message)
        except OSError as error:
            raise HostError(f"{self.name}: the connection is gone") from error

    def put(
        self,
        entries: Iterable[tuple[Path, str]],
        directories: Sequence[str] = (),
        links: Callable[[Path, str], str] = lambda path, target: target,
    ) -> int:
        """Make files there, each below the directory of the run. Returns their number. Raises `HostError`."""

        def chunk(data: bytes) -> None:
            if not self._window.acquire(timeout=specs.ANSWER_SECONDS * 4):
                raise HostError(f"{self.name}: it does not take what is sent")
            self.send(("chunk", data))

        self.call("begin")
        digest, count = pack(entries, chunk, links)
        self.call("unpack", digest, [self.places.there(path) for path in directories], seconds=600)
        return count

    def answers(self, seconds: float) -> str | None:
        """Why a new worker cannot be started there; None when it can."""
        if not self.here:
            return self.lost or "the connection is gone"
        return specs.answers(self.spec, seconds)

    def close(self) -> None:
        """Let go of the connection."""
        if self._group is not None:
            with contextlib.suppress(Exception):
                self._group.terminate(timeout=2.0)


def in_parallel(hosts: Sequence[Host], work: Callable[[Host], object]) -> list[str]:
    """Do something with every host at once; what went wrong with each."""
    wrong: list[str] = []

    def one(host: Host) -> None:
        try:
            work(host)
        except HostError as error:
            wrong.append(str(error))
        except OSError as error:
            wrong.append(f"{host.name}: {error}")

    threads = [threading.Thread(target=one, args=(host,), daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(wrong)
