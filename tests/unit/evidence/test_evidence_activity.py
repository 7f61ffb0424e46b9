"""The step log: strict numbers, a torn tail, secrets masked, any thread."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from pytest_ageval.errors import AgevalError
from pytest_ageval.evidence import ActivityLog, Redactor, read_activity, read_jsonl, repair_tail
from pytest_ageval.executor import ActivityScope, ToolCall, Usage

SECRET = "sk-TESTabcdef0123456789"


def test_a_line_has_the_keys_of_the_format(tmp_path):
    log = ActivityLog(tmp_path / "activity.jsonl")
    assert log.append("phase", "in_flight", "phase_run", {"phase": "run"}) == 1
    assert log.append("phase", "completed", "phase_run", {"phase": "run", "elapsed_ms": 3}) == 2
    log.close()
    first, second = read_activity(log.path)
    assert set(first) == {"at", "format", "kind", "payload", "request_id", "seq", "status"}
    assert first["at"].endswith("Z")
    assert len(first["at"]) == len("2026-01-31T12:00:00.123Z")
    assert second["payload"] == {
        "phase": "run",
        "elapsed_ms": 3,
        "limit_reached": None,
        "checkpoint_seq": None,
    }


def test_the_steps_of_an_executor(tmp_path):
    log = ActivityLog(tmp_path / "activity.jsonl")
    scope: ActivityScope = log.scope("sess_1", "req_1")
    scope.model_turn_started(1, delta_messages=[{"role": "user", "content": "hi"}])
    scope.model_turn_completed(
        1, text="", tool_calls=[ToolCall("c1", "add", {"a": 1})], usage=Usage(prompt_tokens=3)
    )
    scope.tool_call_started("c1", name="add", arguments={"a": 1}, replay_safe=True)
    scope.tool_call_completed("c1", outcome="ok", content="1", exit_code=0)
    scope.model_turn_started(2, delta_messages=[])
    scope.model_turn_aborted(2, reason="timeout", partial_text="he")
    log.close()
    rows = read_activity(log.path)
    assert [(row["kind"], row["status"], row["request_id"]) for row in rows] == [
        ("model_turn", "in_flight", "mt_req_1_1"),
        ("model_turn", "completed", "mt_req_1_1"),
        ("tool_call", "in_flight", "tool_sess_1_c1"),
        ("tool_call", "completed", "tool_sess_1_c1"),
        ("model_turn", "in_flight", "mt_req_1_2"),
        ("model_turn", "aborted", "mt_req_1_2"),
    ]
    assert rows[1]["payload"]["tool_calls"] == [{"id": "c1", "name": "add", "arguments": {"a": 1}}]
    assert rows[1]["payload"]["usage"] == {"prompt_tokens": 3}
    assert all(row["payload"]["invoke_request_id"] == "req_1" for row in rows)


def test_a_kind_or_status_of_another_format_is_refused(tmp_path):
    log = ActivityLog(tmp_path / "activity.jsonl")
    with pytest.raises(ValueError, match="no 'phase' with status 'aborted'"):
        log.append("phase", "aborted", "x")
    with pytest.raises(ValueError, match="no 'nothing'"):
        log.append("nothing", "completed", "x")
    assert log.path.read_bytes() == b""
    log.close()
    with pytest.raises(AgevalError, match="evidence_closed"):
        log.append("phase", "in_flight", "x")


def test_secrets_and_halves_of_characters(tmp_path):
    redactor = Redactor()
    redactor.add("KEY", SECRET)
    log = ActivityLog(tmp_path / "activity.jsonl", redactor)
    text = f"{SECRET} ok \ud83d end \u2028\u0085 \ud83d\ude00"
    log.append("invoke", "completed", "r", {"text": text, "score": float("nan")})
    log.close()
    data = log.path.read_bytes()
    assert SECRET.encode() not in data
    assert data.count(b"\n") == 1
    payload = json.loads(data.decode(), parse_constant=pytest.fail)["payload"]
    assert payload["text"] == "[REDACTED:KEY] ok \ufffd end \u2028\u0085 \U0001f600"
    assert payload["score"] == "NaN"
    assert len(read_activity(log.path)) == 1


def test_many_threads_number_their_lines_once(tmp_path):
    log = ActivityLog(tmp_path / "activity.jsonl", sync="none")

    def work(name):
        for number in range(200):
            log.append("phase", "in_flight", f"{name}_{number}", {"phase": name})

    threads = [threading.Thread(target=work, args=(f"t{index}",)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert [row["seq"] for row in read_activity(log.path)] == list(range(1, 1601))


@pytest.mark.parametrize("tail", [b'{"seq": 3, "form', b"\x00\x00\x00", b"\x00\x00\n", b'{"a":1}'])
def test_a_torn_tail_is_cut_before_the_next_line(tmp_path, tail):
    path = tmp_path / "activity.jsonl"
    log = ActivityLog(path)
    for _ in range(2):
        log.append("phase", "in_flight", "phase_run", {"phase": "run"})
    log.close()
    with path.open("ab") as stream:
        stream.write(tail)
    assert len(read_activity(path)) == 2
    for expected in (3, 4):  # also when the process dies a second time
        log = ActivityLog(path)
        assert log.append("phase", "in_flight", "phase_run") == expected
        log.close()
        with path.open("ab") as stream:
            stream.write(tail)
    assert repair_tail(path) == len(tail)
    assert repair_tail(path) == 0
    assert [row["seq"] for row in read_activity(path)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "line", [b"not json\n", b'{"seq":2,"format":"ageval.activity/1"}\n', b'{"seq":1}\n', b"[]\n"]
)
def test_a_broken_line_before_the_last_is_corrupt(tmp_path, line):
    path = tmp_path / "activity.jsonl"
    good = b'{"seq":1,"format":"ageval.activity/1"}\n'
    path.write_bytes(line + good + good)
    with pytest.raises(AgevalError, match="activity_log_corrupt"):
        read_activity(path)
    with pytest.raises(AgevalError, match="activity_log_corrupt"):
        ActivityLog(path)


def test_lines_are_split_at_newlines_only(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"text": f"a{char}b"} for char in "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\r"]
    path.write_bytes(b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows))
    assert read_jsonl(path) == rows


KILLED = """
import sys
from pathlib import Path
from pytest_ageval.evidence import ActivityLog
log = ActivityLog(Path(sys.argv[1]))
while True:
    number = log.append("invoke", "completed", "r", {"text": "x" * 20000})
    print(number, flush=True)
"""


def test_kill_9_loses_no_line_that_was_acknowledged(tmp_path):
    path = tmp_path / "activity.jsonl"
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        seen = [int(child.stdout.readline()) for _ in range(5)]
        os.kill(child.pid, signal.SIGKILL)
        rest = [int(line) for line in child.stdout.read().split()]
        child.wait()
        child.stdout.close()
        rows = read_activity(path)
        assert len(rows) >= max([*seen, *rest])
    assert [row["seq"] for row in read_activity(path)] == list(range(1, len(rows) + 1))
