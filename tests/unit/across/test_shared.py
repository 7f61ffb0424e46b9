"""What was spent on several machines, what is left there, and ports over the link."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_ageval.accounting.budget import Budget, Ledger, Spent
from pytest_ageval.across import sweep
from pytest_ageval.across.relay import Here, There
from pytest_ageval.across.shared import HostLedger, Purse


def test_every_machine_knows_what_all_have_spent(tmp_path: Path) -> None:
    paths = [tmp_path / name / "ledger" for name in ("here", "a", "b")]
    here, *there = ledgers = [Ledger(path, Budget(max_tokens=100)) for path in paths]
    purse = Purse(paths[0])
    hosts = {name: HostLedger(path) for name, path in zip("ab", paths[1:], strict=True)}

    def meet() -> None:
        for name, host in hosts.items():
            if (news := host.news()) is not None:
                purse.spent(name, news)
        purse.share({name: host.others for name, host in hosts.items()})

    total = Spent()
    for round_ in range(20):
        for number, ledger in enumerate(ledgers):
            one = Spent(cost_usd=0.1 * (number + 1), tokens=number + round_, calls=1)
            ledger.add(one)
            total = total.plus(one)
        meet()
    meet()
    for ledger in ledgers:
        found = ledger.spent()
        assert (found.tokens, found.calls) == (total.tokens, total.calls)
        assert abs(found.cost_usd - total.cost_usd) < 1e-6
    assert there[0].exhausted() is not None
    assert all(host.news() is None for host in hosts.values())
    assert here.spent().calls == 60


def test_a_sweep_ends_what_lives_and_removes_what_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    code = "import sys, time, pathlib; from pytest_ageval.across import sweep\n"
    code += "held = sweep.hold(pathlib.Path(sys.argv[1]), 'gw0'); print('held', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, str(base)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "held\n"
        assert list(sweep.living(base)) == [("gw0", process.pid)]
        locked = base / "copy" / "read-only"
        locked.mkdir(parents=True)
        (locked / "file").touch()
        locked.chmod(0o500)
        begun = time.monotonic()
        sweep.end_workers(base, 0.3)
        assert process.wait(5) == -9
    assert 0.3 <= time.monotonic() - begun < 5
    assert list(sweep.living(base)) == []
    monkeypatch.setattr(sweep.tempfile, "gettempdir", lambda: str(tmp_path))
    assert list(sweep.abandoned()) == []
    base.rename(base := tmp_path / "ageval-1")
    held = sweep.lock(base / sweep.AGENT)
    assert list(sweep.abandoned()) == []
    os.close(held)
    assert list(sweep.abandoned()) == [base]
    sweep.remove(base, "run_0")
    assert not base.exists()


def test_a_port_of_the_controller_over_the_link() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    queue: list[tuple[str, Any]] = []
    here = Here(lambda word, value: there.take(value), frozenset([port]))
    there = There(lambda word, value: (queue.append((word, value)), here.take(word, value)))
    given: dict[str, Any] = {"sock_port": port, "other": 1}
    there.listen(given)
    assert given["sock_port"] != port
    assert given["other"] == 1
    with socket.create_connection(("127.0.0.1", given["sock_port"]), 5) as client, server:
        client.sendall(b"token")
        accepted, _ = server.accept()
        with accepted:
            assert accepted.recv(5) == b"token"
            accepted.sendall(b"yes")
            assert client.recv(3) == b"yes"
        assert client.recv(1) == b""
    assert queue[0][0] == "relay_open"
    here.take("relay_open", (1, 22))  # not one that was given
