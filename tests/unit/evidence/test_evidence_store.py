"""The attempt directory: one writer, documents whole or absent, one result."""

import enum
import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_ageval.attempt.context import as_ageval_error
from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence import (
    EvidenceStore,
    Redactor,
    phase_timing,
    plain,
    read_activity,
    read_result,
)
from pytest_ageval.evidence.files import write_atomic
from pytest_ageval.evidence.store import FACTS_LIMIT
from pytest_ageval.executor import AgentResult

SECRET = "sk-TESTabcdef0123456789"
GOLD = "GOLD-ANSWER-42"


def strict(path):
    return json.loads(path.read_bytes().decode(), parse_constant=pytest.fail)


@pytest.fixture
def store(tmp_path):
    redactor = Redactor()
    redactor.add("KEY", SECRET)
    with EvidenceStore.create(tmp_path / "attempt_1", redactor, run_id="run_1") as made:
        yield made


def test_a_settled_attempt(store):
    store.write_lock({"digest": "sha256:1", "limits": {}})
    store.activity.append("phase", "in_flight", "phase_run", {"phase": "run"})
    store.fact("environment", "environment_started", {"kind": "local"})
    store.write_trajectory([])
    result = {"status": "PASS", "score": 1.0, "error": None, "evidence_path": "runs/attempt_1"}
    store.write_summary(result, phase_timing([("run", 12.5), ("record", 2)]), {"note": 1})
    assert read_result(store.root) is None
    store.write_result(result)
    store.drop_raw()
    store.close()
    assert sorted(path.name for path in store.root.iterdir()) == [
        "activity.jsonl",
        "lock.json",
        "result.json",
        "summary.json",
        "task-artifacts",
        "trajectory.jsonl",
    ]
    summary = strict(store.root / "summary.json")
    assert summary == {
        "schema": "ageval.evidence.summary/1",
        "attempt_id": "attempt_1",
        "run_id": "run_1",
        "evidence_root": "runs/attempt_1",
        "result": result,
        "facts": [{"phase": "environment", "name": "environment_started", "detail": {"kind": "local"}}],
        "phase_timing": {
            "schema": "ageval.phase_timing/1",
            "phases": [
                {"id": "run", "label": "Agent Execution", "duration_ms": 12.5},
                {"id": "record", "label": "Trajectory", "duration_ms": 2},
            ],
            "total_ms": 14.5,
        },
        "keep_vendor_raw": False,
        "extra": {"note": 1},
    }
    text = (store.root / "result.json").read_text()
    assert text.startswith('{\n  "error": null,\n  "evidence_path"')
    assert read_result(store.root) == result


def test_a_result_is_written_once(store):
    store.write_result({"status": "PASS"})
    for write in (
        lambda: store.write_result({"status": "ERROR"}),
        lambda: store.write_lock({}),
        lambda: store.write_trajectory([]),
        lambda: store.fact("run", "late"),
    ):
        with pytest.raises(AgevalError, match=r"attempt_already_settled|evidence_settled"):
            write()
    assert read_result(store.root) == {"status": "PASS"}
    store.close()
    with pytest.raises(AgevalError, match="attempt_already_settled"):
        EvidenceStore.create(store.root)
    assert not (store.root / "writer.lock").exists()


def test_no_secret_and_no_broken_json_in_any_file(store):
    nasty = {"text": f"a {SECRET} \ud83d", "nan": math.nan, SECRET: 1}
    store.write_lock(nasty)
    store.fact("run", "task_run", nasty)
    store.activity.append("invoke", "completed", "r", nasty)
    store.write_checks([{"id": "c", "stdout": SECRET}])
    store.write_trajectory([[nasty]])
    store.write_observation([[nasty]])
    store.write_summary(nasty, {})
    store.write_private("inputs.json", nasty)
    store.write_result({"error": {"message": f"password is {SECRET}"}, "metrics": nasty})
    files = [path for path in store.root.rglob("*") if path.is_file()]
    assert len(files) >= 8
    for path in files:
        data = path.read_bytes()
        assert SECRET.encode() not in data
        for line in data.splitlines() if path.suffix == ".jsonl" else [data]:
            json.loads(line.decode(), parse_constant=pytest.fail)


def test_checks_keep_known_fields_of_rows_with_an_id(store):
    kept = store.write_checks(
        [
            {"id": " a ", "status": "PASS", "score": math.nan, "exit_code": True, "junk": 1},
            {"title": "no id"},
            "not a row",
            {"id": "b", "score": 0.5, "exit_code": 3, "stdout": "x" * 70_000, "stderr": b"\xff"},
        ]
    )
    document = strict(store.root / "evaluation" / "checks.json")
    assert document == {"schema": "ageval.evaluation.checks/1", "checks": kept}
    assert kept[0] == {"id": "a", "status": "PASS"}
    assert (kept[1]["score"], kept[1]["exit_code"], kept[1]["stderr"]) == (0.5, 3, "\ufffd")
    assert len(kept[1]["stdout"]) == 65_536
    assert kept[1]["stdout"].endswith("cut]")


def test_no_good_check_no_file(store):
    assert store.write_checks([{"title": "x"}]) == []
    assert store.write_observation([]) is None
    assert not (store.root / "evaluation").exists()


def test_facts_are_bounded(store):
    store.fact("run", "task_run", {"stderr": "x" * 100_000})
    assert len(store.facts[0]["detail"]["stderr"]) < 4100
    store.fact("run", "big", {str(number): "x" * 1000 for number in range(100)})
    assert list(store.facts[1]["detail"]) == ["dropped_bytes"]
    for _ in range(FACTS_LIMIT):
        store.fact("run", "again")
    assert len(store.facts) == FACTS_LIMIT
    store.write_summary({}, {})
    assert strict(store.root / "summary.json")["facts_dropped"] == 2


def test_judges_are_kept_apart(store):
    scope = store.scope("sess_judge", "req_j", "evaluate")
    scope.model_turn_started(1, delta_messages=[{"role": "user", "content": GOLD}])
    record = store.invocation(
        profile_id="judge",
        session_id="sess_judge",
        executor_kind="openai-http",
        prompt=f"The answer is {GOLD}",
        surface="evaluate",
    )
    record.finish(AgentResult("good"), 1)
    rows = record.rows(record.payload())
    store.write_observation([rows])
    store.activity.append("phase", "in_flight", "phase_evaluate", {"phase": "evaluate"})
    store.drop_raw()
    holders = [p for p in store.root.rglob("*") if p.is_file() and GOLD in p.read_text()]
    assert holders == [store.root / "evaluation" / "private" / "activity.jsonl"]
    assert holders[0].parent.stat().st_mode & 0o777 == 0o700
    assert [row["type"] for row in rows] == ["turn", "terminal"]
    assert (rows[0]["role"], rows[0]["profile_id"]) == ("assistant", "judge")


def invoke(store, **given):
    return store.invocation(
        profile_id="solver", session_id="s/../1", executor_kind="acp", prompt="p", **given
    )


def test_raw_evidence_is_dropped(store):
    record = invoke(store)
    record.emit({"kind": "text", "channel": "assistant", "text": "hi"})
    record.finish(AgentResult("hi"), 1)
    assert store.raw_dir("s") is None
    dropped = store.drop_raw()
    assert sorted(Path(name).name for name in dropped) == ["events.jsonl", "final-response.json"]
    assert [path.name for path in record.directory.iterdir()] == ["metadata.json"]
    assert record.directory.name == f"0001-{record.info.invocation_id}"
    assert invoke(store).directory.name.startswith("0002-inv_")


def test_raw_evidence_that_is_kept_holds_no_secret(tmp_path):
    redactor = Redactor()
    redactor.add("KEY", SECRET)
    with EvidenceStore.create(tmp_path / "a", redactor, keep_raw=True) as store:
        record = invoke(store)
        record.finish(AgentResult("hi"), 1)
        raw = store.raw_dir("s/../1")
        assert raw is not None
        assert raw.parent == store.root / "agent" / "backend_raw"
        (raw / "vendor.log").write_bytes(b"\xff key=" + SECRET.encode())
        assert store.drop_raw() == ["agent/backend_raw/s_.._1/vendor.log"]
        assert (raw / "vendor.log").read_bytes() == b"\xff key=[REDACTED:KEY]"
        assert (record.directory / "final-response.json").exists()


# -- one writer ----------------------------------------------------------------------------------


def test_a_second_writer_is_refused_in_this_process(store):
    with pytest.raises(AgevalError, match=f"evidence_busy.*process {os.getpid()}"):
        EvidenceStore.create(store.root)
    store.close()
    store.close()
    EvidenceStore.create(store.root).close()


OWNER = """
import sys, time
from pathlib import Path
from pytest_ageval.evidence import EvidenceStore
store = EvidenceStore.create(Path(sys.argv[1]))
store.fact("run", "began")
invocation = store.invocation(profile_id="p", session_id="s", executor_kind="nop", prompt="x")
number = 0
while True:
    number += 1
    store.activity.append("phase", "in_flight", f"p{number}", {"phase": "run"})
    if number == 1:
        print("ready", flush=True)
"""


def test_a_writer_in_another_process(tmp_path):
    root = tmp_path / "attempt_1"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(root)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == "ready\n"
        with pytest.raises(AgevalError, match=f"evidence_busy.*process {owner.pid}"):
            EvidenceStore.create(root)
        os.kill(owner.pid, signal.SIGKILL)
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
        # Not waited for yet: a zombie holds nothing.
        with EvidenceStore.create(root) as store:
            assert [fact["name"] for fact in store.facts] == ["began"]
            last = store.activity.seq
            assert last > 0
            assert store.activity.append("phase", "in_flight", "mine") == last + 1
            assert invoke(store).info.seq == 2
        owner.wait()
    assert len(read_activity(root / "activity.jsonl")) == last + 1


@pytest.mark.parametrize(
    "change",
    [
        {"start_time": "1"},  # the process id is in use again
        {"pid": 2**22 + 1},
        {"boot_id": "another boot"},
        {"pid_namespace": 1},
    ],
)
def test_the_lock_of_a_dead_owner_is_taken_over(tmp_path, change):
    store = EvidenceStore.create(tmp_path / "a")
    lock = store.root / "writer.lock"
    owner = strict(lock)
    assert owner["pid"] == os.getpid()
    assert owner["boot_id"]
    store.close()
    lock.write_text(json.dumps({**owner, **change}))
    EvidenceStore.create(store.root).close()
    for broken in ("", "[]", "{", "{}"):
        lock.write_text(broken)
        EvidenceStore.create(store.root).close()


def test_an_owner_in_another_container_is_known_by_the_kernel(store):
    lock = store.root / "writer.lock"
    data = json.dumps({**strict(lock), "pid_namespace": 1})
    with lock.open("r+") as stream:  # the same file, so that its owner's kernel lock stays
        stream.truncate()
        stream.write(data)
    with pytest.raises(AgevalError, match="evidence_busy"):
        EvidenceStore.create(store.root)


RACER = """
import sys
from pathlib import Path
from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence import EvidenceStore
sys.stdin.readline()
try:
    store = EvidenceStore.create(Path(sys.argv[1]))
except AgevalError as error:
    print(error.title, flush=True)
else:
    print("mine", flush=True)
    sys.stdin.readline()
"""


def test_of_many_that_take_over_one_wins(tmp_path):
    store = EvidenceStore.create(tmp_path / "a")
    owner = strict(store.root / "writer.lock")
    store.close()
    (store.root / "writer.lock").write_text(json.dumps({**owner, "start_time": "1"}))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(store.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    found = [racer.stdout.readline().strip() for racer in racers]
    for racer in racers:
        racer.communicate("end\n")
    assert sorted(found) == ["evidence_busy"] * 3 + ["mine"]


def test_a_document_is_whole_or_as_before(tmp_path, monkeypatch):
    path = tmp_path / "doc.json"
    write_atomic(path, b"old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["doc.json"]


def test_plain_makes_json_types_of_their_subclasses():
    class Word(enum.StrEnum):
        A = "a"

    class Number(enum.IntEnum):
        ONE = 1

    class Real(float):
        pass

    found = plain({Word.A: [Word.A, Number.ONE, Real(1.5), Real("nan")]})
    assert found == {"a": ["a", 1, 1.5, "NaN"]}
    assert [type(item) for item in found["a"]] == [str, int, float, str]
    assert [type(key) for key in found] == [str]


def test_plain_makes_json_of_anything(tmp_path):
    class Odd:
        def __repr__(self):
            return "<odd>"

    found = plain({1: (1, 2.0, None, True), "p": tmp_path, "o": Odd(), "inf": -math.inf})
    assert found == {
        "1": [1, 2.0, None, True],
        "p": str(tmp_path),
        "o": "<odd>",
        "inf": "-Infinity",
    }


def test_a_full_disk_is_told_and_nothing_stays_open(tmp_path, monkeypatch):
    def full(descriptor, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("pytest_ageval.evidence.writer.write_all", full)
    with pytest.raises(AgevalError, match=r"evidence_unwritable.*No space left on device.*--ageval-dir"):
        EvidenceStore.create(tmp_path / "a", Redactor())
    monkeypatch.undo()
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert not (tmp_path / "a").exists()
    with EvidenceStore.create(tmp_path / "a", Redactor()) as store:
        monkeypatch.setattr("pytest_ageval.evidence.files.write_all", full)
        with pytest.raises(AgevalError, match="evidence_unwritable"):
            store.write_lock({})
        monkeypatch.undo()
    error = as_ageval_error(OSError(errno.ENOSPC, "No space left on device", "x"), "run")
    assert (error.title, error.phase) == ("environment_disk_full", "run")


def test_an_attempt_without_agent_costs_less_than_10_ms(tmp_path):
    def one(number):
        with EvidenceStore.create(tmp_path / str(number), Redactor(), sync="none") as store:
            store.write_lock({"locked": {str(key): key for key in range(100)}})
            for phase in ("environment", "run", "evaluate", "record"):
                for status in ("in_flight", "completed"):
                    store.activity.append("phase", status, f"phase_{phase}", {"phase": phase})
                for _ in range(5):
                    store.fact(phase, "phase_finished", {"a": 1})
            store.write_trajectory([])
            store.write_checks([{"id": "a"}])
            store.write_summary({"status": "PASS"}, {})
            store.write_result({"status": "PASS"})
            store.drop_raw()

    one("warm")
    begun = time.process_time()
    for number in range(20):
        one(number)
    assert (time.process_time() - begun) / 20 < 0.010
