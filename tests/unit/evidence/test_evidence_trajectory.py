"""Rows of an invocation: every row says whose it is, nothing is lost, nothing said twice."""

import dataclasses
import json
import threading

import pytest

from pytest_ageval.evidence import InvocationInfo, InvocationRecord, Redactor, rows, tail_text
from pytest_ageval.evidence.invocation import STRING_LIMIT
from pytest_ageval.executor import AgentResult, Usage

SECRET = "sk-TESTabcdef0123456789"
READ = {"kind": "tool", "tool_call_id": "c1", "function_name": "read", "source": "agent"}


@pytest.fixture
def record(tmp_path):
    redactor = Redactor()
    redactor.add("KEY", SECRET)
    info = InvocationInfo(
        seq=2,
        invocation_id="inv_1",
        attempt_id="attempt_1",
        profile_id="solver",
        session_id="sess_1",
        executor_kind="acp",
        surface="run",
        prompt="what is 2+2?",
        model="m",
        request_id="req_1",
        turn=1,
    )
    return InvocationRecord(info, tmp_path / "0002-inv_1", redactor, limit=100_000)


def say(record, text, channel="assistant"):
    record.emit({"kind": "text", "channel": channel, "text": text})


def made(record, result):
    record.finish(result, 12.5)
    return record.rows(record.payload())


def lines(record):
    data = (record.directory / "events.jsonl").read_bytes()
    return [json.loads(line) for line in data.splitlines()]


def test_the_rows_of_a_turn_with_a_tool(record):
    say(record, "I should ", "thought")
    say(record, "look", "thought")
    record.emit({**READ, "phase": "start", "title": "Read", "args": {"path": "a"}})
    record.emit({**READ, "phase": "update", "status": "in_progress", "content": "ab"})
    record.emit({**READ, "phase": "update", "status": "completed", "content": "abc"})
    record.emit({"kind": "permission", "outcome": "selected", "option_id": "ok", "policy": "allow"})
    say(record, '{"answer": 4}')
    usage = Usage(prompt_tokens=11, completion_tokens=7)
    found = made(record, AgentResult('{"answer": 4}', usage=usage, stop_reason="end_turn"))
    assert [row["type"] for row in found] == [
        "turn",
        "turn",
        "tool_call",
        "observation",
        "permission_decision",
        "turn",
        "terminal",
    ]
    assert {row["session_id"] for row in found} == {"sess_1"}
    assert {row["profile_id"] for row in found} == {"solver"}
    assert {row["turn_index"] for row in found} == {2}
    user, thought, call, observation, _, answer, terminal = found
    assert (user["role"], user["content"], user["source"]) == ("user", "what is 2+2?", "ageval")
    assert (thought["part"], thought["content"]) == ("thought", "I should look")
    assert (call["function_name"], call["args"], call["status"]) == (
        "read",
        {"path": "a"},
        "completed",
    )
    assert (observation["tool_call_id"], observation["content"]) == ("c1", "abc")
    assert (answer["role"], answer["content"]) == ("assistant", '{"answer": 4}')
    assert terminal["structured"] == {"answer": 4}
    assert terminal["usage"] == {"prompt_tokens": 11, "completion_tokens": 7}
    assert (terminal["ok"], terminal["stop_reason"], terminal["elapsed_ms"]) == (
        True,
        "end_turn",
        12.5,
    )


def test_an_update_after_text_still_belongs_to_its_call(record):
    record.emit({**READ, "phase": "start"})
    say(record, "meanwhile")
    record.emit({**READ, "phase": "update", "status": "failed", "raw_output": {"code": 1}})
    found = made(record, AgentResult("meanwhile"))
    assert [row["type"] for row in found[1:-1]] == ["tool_call", "observation", "turn"]
    assert found[2]["raw_output"] == {"code": 1}
    assert found[1]["status"] == "failed"


@pytest.mark.parametrize(
    ("bursts", "final", "expected"),
    [
        (["a", "b"], "ab", ["a", "b"]),
        (["a", "b"], "b", ["a", "b"]),
        (["a", "b"], "whole answer", ["a", "b", "whole answer"]),
        ([], "answer", ["answer"]),
        (["a"], "", ["a"]),
    ],
)
def test_the_answer_is_said_once(record, bursts, final, expected):
    for number, text in enumerate(bursts):
        say(record, text)
        record.emit({**READ, "tool_call_id": f"c{number}"})
    found = made(record, AgentResult(final))
    assert [row["content"] for row in found if row.get("role") == "assistant"] == expected


def test_unknown_things_are_kept(record):
    update = {"sessionUpdate": "totally_new_kind", "_meta": {"x": 1}, "n": [1]}
    record.emit({"kind": "opaque", "raw": update})
    record.emit({"kind": "brand_new", "value": 3})
    found = made(record, AgentResult("ok"))
    unknown = [row for row in found if row["type"] == "unknown"]
    assert unknown[0]["raw"] == update
    assert unknown[1]["raw"]["kind"] == "brand_new"
    assert unknown[1]["raw"]["value"] == 3


def test_usage_is_never_null():
    found = rows({"ok": False, "error": "crash"}, session_id=None, profile_id="p", turn_index=1)
    assert found[-1]["usage"] == {"unavailable": "not_reported"}
    assert found[-1]["type"] == "terminal"


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([{"prompt_tokens": 100}, {"prompt_tokens": 250}], 250),
        (
            [
                {"usage": {"prompt_tokens": 100}, "cumulative": False},
                {"usage": {"prompt_tokens": 150}, "cumulative": False},
            ],
            250,
        ),
    ],
)
def test_figures_heard_before_a_timeout_are_kept_as_partial(record, updates, expected):
    for update in updates:
        record.emit({"kind": "usage", **update})
    lost = AgentResult(
        ok=False, error="timeout", status="timeout", usage=Usage(unavailable="lost_on_timeout")
    )
    terminal = made(record, lost)[-1]
    assert terminal["usage"] == {"prompt_tokens": expected, "unavailable": "partial"}
    assert terminal["metadata"]["status"] == "timeout"


def test_figures_of_earlier_turns_are_not_taken_for_this_one(tmp_path, record):
    info = dataclasses.replace(record.info, turn=2)
    second = InvocationRecord(info, tmp_path / "0003-inv_2", Redactor())
    second.emit({"kind": "usage", "cost_usd": 0.5, "cumulative": True})
    terminal = made(second, AgentResult(ok=False, error="timeout", status="timeout"))[-1]
    assert terminal["usage"] == {"unavailable": "not_reported"}


def test_a_secret_over_any_chunk_border_is_in_no_file_and_no_row(record, tmp_path):
    texts = [SECRET[:cut] for cut in range(1, len(SECRET))]
    for head in texts:
        say(record, f"<{head}")
        record.emit({"kind": "opaque", "raw": {"beat": 1}})  # does not end the text
        say(record, SECRET[len(head) :] + ">")
    for char in SECRET:
        say(record, char, "thought")
    record.emit({**READ, "args": {"token": SECRET}, "content": f"x{SECRET}"})
    found = made(record, AgentResult(f"done {SECRET}"))
    for path in record.directory.iterdir():
        assert SECRET not in path.read_text()
    for channel in ("assistant", "thought"):
        joined = "".join(row["text"] for row in lines(record) if row.get("channel") == channel)
        assert SECRET not in joined
        assert joined.count("[REDACTED:KEY]") == (len(texts) if channel == "assistant" else 1)
    assert SECRET not in "".join(str(row.get("content", "")) for row in found)
    assert SECRET not in json.dumps(found)
    said = next(row["content"] for row in found if row.get("role") == "assistant" and "part" not in row)
    assert said == "<[REDACTED:KEY]>" * len(texts)


def test_a_secret_that_a_tool_call_interrupts(record):
    say(record, f"key {SECRET[:9]}")
    record.emit(READ)
    say(record, f"{SECRET[9:]} end")
    found = made(record, AgentResult(""))
    assert [row["content"] for row in found if row.get("role") == "assistant"] == [
        "key [REDACTED:KEY]",
        " end",
    ]
    assert SECRET not in "".join(row.get("text", "") for row in lines(record))


def test_text_of_a_stream_becomes_few_lines(record):
    for _ in range(500):
        say(record, "ab ")
    found = made(record, AgentResult("ab " * 500))
    assert len(lines(record)) < 10
    assert "".join(row["text"] for row in lines(record)) == "ab " * 500
    assert sum(row.get("role") == "assistant" for row in found) == 1


def test_too_much_output_is_counted_and_not_kept(record):
    for _ in range(300):
        say(record, "x" * 1000)
    record.emit(READ)
    found = made(record, AgentResult("x"))
    assert sum(len(row.get("content", "")) for row in found) < 110_000
    assert [row for row in found if row["type"] == "truncated"] == [
        {
            "type": "truncated",
            "dropped_events": 201,
            "dropped_bytes": pytest.approx(200_000, abs=500),
            "source": "ageval",
            "turn_index": 2,
            "session_id": "sess_1",
            "profile_id": "solver",
        }
    ]
    assert (record.directory / "events.jsonl").stat().st_size < 120_000
    assert [row["kind"] for row in lines(record)].count("truncated") == 1


def test_one_long_string_keeps_its_head_and_tail(record):
    record._limit = 10_000_000
    record.emit({**READ, "content": "a" * STRING_LIMIT + "b" * STRING_LIMIT})
    content = made(record, AgentResult("x"))[2]["content"]
    assert len(content) < STRING_LIMIT + 100
    assert content.startswith("aaa")
    assert content.endswith("bbb")
    assert f"{STRING_LIMIT} characters cut" in content


def test_late_events_are_marked(record):
    record.finish(AgentResult("done"), 1)
    say(record, "late text")
    record.emit({**READ, "content": "late output"})
    found = record.rows(record.payload())
    assert [row.get("late") for row in found if row["type"] in ("tool_call", "observation")] == [
        True,
        True,
    ]
    assert any(row.get("content") == "late text" and row["late"] for row in found)


def test_events_come_from_any_thread(record):
    def work(channel):
        for _ in range(100):
            say(record, "word ", channel)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("thought", "assistant")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record.finish(AgentResult("x"), 1)
    for channel in ("thought", "assistant"):
        said = "".join(row["text"] for row in lines(record) if row.get("channel") == channel)
        assert said == "word " * 100


def test_metadata_and_the_response(record):
    running = json.loads((record.directory / "metadata.json").read_text())
    assert (running["status"], running["finished_at"]) == ("running", None)
    say(record, "4")
    record.finish(AgentResult("4", model="actual", metadata={"api": "chat", "extra": {"id": 1}}), 7)
    record.finish(AgentResult("other"), 8)  # the first result stands
    done = json.loads((record.directory / "metadata.json").read_text())
    assert done["schema"] == "ageval.trajectory.metadata/1"
    assert (done["status"], done["model"], done["latency_ms"]) == ("completed", "actual", 7.0)
    assert done["usage"] == {"unavailable": "not_reported"}
    assert (done["session_id"], done["seq"], done["event_count"]) == ("sess_1", 2, 1)
    response = json.loads((record.directory / "final-response.json").read_text())
    assert response["content"] == "4"
    payload = record.payload()
    assert payload["extra"] == {"id": 1}
    assert payload["metadata"]["api"] == "chat"


def test_an_invocation_that_never_finished_has_rows(record):
    say(record, "I was sayi")
    found = record.rows(record.payload())
    assert found[1]["content"] == "I was sayi"
    assert (found[-1]["ok"], found[-1]["error"]) == (False, "not_finished")


def test_odd_values_of_an_agent(record):
    record.emit({**READ, "args": {"nan": float("inf"), "path": b"\xff", 3: {1, 2}}})
    deep: list = []
    for _ in range(500):
        deep = [deep]
    record.emit({**READ, "raw_output": deep, "content": "half \ud83d"})
    found = made(record, AgentResult("x \ud83d y"))
    assert found[1]["args"] == {"nan": "Infinity", "path": "\ufffd", "3": [1, 2]}
    assert "\ufffd" in (record.directory / "events.jsonl").read_text()


def test_a_tail_for_people(record, tmp_path):
    say(record, "Let me look.")
    record.emit({**READ, "args": {"path": "a"}, "status": "completed", "content": "l1\nl2"})
    say(record, "Done.")
    found = made(record, AgentResult("Done.", ok=False, error="HTTPError:429"))
    text = tail_text(found)
    assert text.splitlines() == [
        "user: what is 2+2?",
        "assistant: Let me look.",
        'tool read({"path": "a"}) -> ok',
        "  l1",
        "  l2",
        "assistant: Done.",
        "ended: HTTPError:429",
    ]
    path = tmp_path / "trajectory.jsonl"
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in found * 4000))
    assert path.stat().st_size > 2_000_000
    assert tail_text(path).endswith(text.removeprefix("user"))
    assert len(tail_text(path)) <= 4000
    assert tail_text(tmp_path / "absent") == ""
    long = [{"type": "turn", "role": "assistant", "content": "x" * 10_000}]
    assert len(tail_text(long, max_chars=200)) <= 200


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("make test", "make test"),
        (["/bin/bash", "-lc", "make test | tail"], "make test | tail"),
        (["ls", "a b"], "ls 'a b'"),
        ("cat > f <<EOF\n" + "x\n" * 1000 + "EOF", "cat > f <<EOF x x x"),
    ],
)
def test_a_command_is_shown_without_what_belongs_to_the_protocol(record, command, shown):
    call = {"kind": "tool", "tool_call_id": "call_1", "function_name": "execute", "tool_kind": "execute"}
    record.emit({**call, "args": {"call_id": "call_1", "command": command, "turn_id": "t-7"}})
    record.emit({**call, "status": "completed", "content": "```sh\nall is well\n```"})
    _, line, output, _ = tail_text(made(record, AgentResult("Done."))).splitlines()
    assert line.startswith(f"tool execute: {shown}")
    assert line.endswith(" -> ok")
    assert len(line) < 400
    assert output == "  all is well"


def test_no_text_is_said_to_be_none(record):
    assert tail_text(made(record, AgentResult(""))).splitlines()[-1] == "assistant: (no text)"
