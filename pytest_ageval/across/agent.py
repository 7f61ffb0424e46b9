"""The host's end of the controller's connection: the copy of the files, what is shared, and the end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_ageval.across import sweep
from pytest_ageval.across.packing import Spool, unpack_trusted
from pytest_ageval.across.places import Places
from pytest_ageval.across.shared import HostLedger
from pytest_ageval.across.shipping import Shipper

#: Seconds without a word from the controller after which it is taken for gone.
SILENCE = 120.0

#: Seconds between two looks at what the workers of this host have spent.
LOOK_SECONDS = 0.2


def serve(channel: Any) -> None:
    """Do what the controller says until it goes. Runs in the agent's process, for its whole life."""
    run_id, place, budget = channel.receive()
    parent = Path.cwd() if place else tempfile.gettempdir()
    base = Path(tempfile.mkdtemp(prefix="ageval-", dir=parent)).resolve()
    agent = Agent(channel, run_id, base, budget)
    try:
        agent.loop()
    finally:
        if not agent.finished:
            # The connection is gone, and this process may not stay for long.
            command = [sys.executable, "-m", "pytest_ageval.across.sweep", str(base), run_id]
            nowhere = subprocess.DEVNULL
            subprocess.Popen(
                command, cwd="/", stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
            )
            os._exit(1)  # the connection may look alive for hours


class Agent:
    """`base` is the directory of the run on this host."""

    def __init__(self, channel: Any, run_id: str, base: Path, budget: bool) -> None:
        self.channel = channel
        self.run_id = run_id
        self.base = base
        self.running = base / sweep.RUNNING
        self.running.mkdir(mode=0o700)
        self._held = sweep.lock(base / sweep.AGENT)
        self.finished = False
        self._shipper = Shipper(channel.send, Places(str(base)))
        self._ledger = HostLedger(self.running / "ledger") if budget else None
        self._spool: Spool | None = None

    def loop(self) -> None:
        """Until the end is asked for, or the controller is gone."""
        self.channel.send(("base", str(self.base)))
        wait, quiet = (LOOK_SECONDS if self._ledger else SILENCE), 0.0
        while not self.finished and quiet < SILENCE:
            try:
                message = self.channel.receive(timeout=wait)
            except self.channel.TimeoutError:
                quiet += wait
            except EOFError:
                return
            else:
                quiet = 0.0
                self._take(message)
            if self._ledger is not None and (spent := self._ledger.news()) is not None:
                self.channel.send(("spent", spent))

    def _take(self, message: tuple[Any, ...]) -> None:
        word, *given = message
        if word == "chunk":
            if self._spool is not None:
                self._spool.write(given[0])
            self.channel.send(("ack", None))
        elif word == "call":
            number, name, args = given
            try:
                value = getattr(self, f"do_{name}")(*args)
            except Exception as error:  # the controller says what it is
                self.channel.send(("reply", (number, False, f"{type(error).__name__}: {error}")))
            else:
                self.channel.send(("reply", (number, True, value)))

    # -- what can be asked for -------------------------------------------------------------------

    def do_begin(self) -> None:
        """Files come."""
        self._spool = Spool(self.base / ".arriving")

    def do_unpack(self, digest: str, directories: Sequence[str]) -> None:
        """They have come; `directories` are there too then."""
        assert self._spool is not None
        try:
            self._spool.finish(digest)
            unpack_trusted(self._spool.path, self.base)
        finally:
            self._spool.drop()
            self._spool = None
        for path in directories:
            Path(path).mkdir(parents=True, exist_ok=True)

    def do_others(self, spent: dict[str, Any]) -> None:
        """What all the others have spent."""
        if self._ledger is not None:
            self._ledger.others(spent)

    def do_verdicts(self, lines: Sequence[tuple[str, str]]) -> None:
        """Attempts of other machines have settled, for ``--attempts auto``."""
        directory = self.running / "verdicts"
        directory.mkdir(mode=0o700, exist_ok=True)
        for name, line in lines:
            with (directory / Path(name).name).open("ab", buffering=0) as stream:
                stream.write(line.encode())

    def do_ship(self, directory: str) -> bool:
        """Send evidence whose worker cannot. False when it is not there."""
        path = Path(directory)
        if not path.is_relative_to(self.base) or not path.is_dir():
            return False
        self._shipper.ship(path)
        return True

    def do_reap(self, kinds: Sequence[str], worker: str) -> list[str]:
        """Remove the boxes of a worker that died."""
        return sweep.reap(self.run_id, kinds, **{"ageval.worker": worker})

    def do_wait(self, seconds: float) -> None:
        """Until the workers are gone."""
        sweep.end_workers(self.base, seconds)

    def do_finish(self, kinds: Sequence[str]) -> list[str]:
        """Remove what the run made here."""
        lines = sweep.reap(self.run_id, {*kinds, *sweep.kinds_noted(self.base)})
        sweep.remove(self.base, self.run_id)
        self.finished = True
        return lines
