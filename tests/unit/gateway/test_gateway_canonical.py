"""What makes two requests the same, and how the files of a recording are written and found."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_ageval.errors import ConfigError
from pytest_ageval.gateway.canonical import Canonical, Names, Normaliser, today
from pytest_ageval.gateway.recording import (
    Answer,
    Player,
    Recorder,
    Recording,
    difference,
    load,
    scope_name,
)

NOW = datetime.now(UTC)


def same(first: str, second: str) -> bool:
    normalise = Normaliser(Names())
    return normalise.text(first) == normalise.text(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (f"{NOW:%Y-%m-%d}", f"{NOW - timedelta(days=1):%Y-%m-%d}"),
        (f"Today's date: {NOW:%Y-%m-%d}.", f"Today's date: {NOW + timedelta(days=1):%Y-%m-%d}."),
        (f"{NOW:%a %b %d} 10:11:12 UTC {NOW:%Y}", f"{NOW:%a %b %d} 23:00:59 UTC {NOW:%Y}"),
        (f"-rw-r--r-- 1 root root 5 {NOW:%b %d} 10:11 f", f"-rw-r--r-- 1 root root 5 {NOW:%b %d} 09:01 f"),
        (f"{NOW:%A}, {NOW:%B} {NOW.day}, {NOW:%Y}", f"{NOW:%A}, {NOW:%B} {NOW.day}, {NOW:%Y}"),
        ("at 2001-02-03T04:05:06.789Z", "at 2001-02-03T14:15:16.000Z"),
        ("Ran 3 tests in 0.002s", "Ran 3 tests in 1.5s"),
        ("Wall time: 0.0519 seconds", "Wall time: 12 seconds"),
        ("real\t0m0.012s", "real\t1m3.400s"),
        ("Chunk ID: 3fa2c1\nrunning with session ID 55", "Chunk ID: 00beef\nrunning with session ID 7"),
        ("6f1c0a9e-1d2b-4c3d-8e9f-0a1b2c3d4e5f", "00000000-1d2b-4c3d-8e9f-0a1b2c3d4e5f"),
        ("[main 1a2b3c4] fix", "[main 9f8e7d6] fix"),
        ("commit " + "a1" * 20, "commit " + "b2" * 20),
        ("/tmp/tmpab12cd_z/x", "/tmp/tmpzz99xx_q/x"),
        ("/tmp/tmp.AbCdEfGhIj", "/tmp/tmp.1234567890"),
        ("http://127.0.0.1:40001/", "http://127.0.0.1:9/"),
        ("<object at 0x7f2fb5e233d0>", "<object at 0x7f9b6f56b390>"),
    ],
)  # fmt: skip
def test_what_varies_from_run_to_run_is_no_difference(first: str, second: str) -> None:
    assert same(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2001-02-03", "2001-02-04"),
        ("five faults", "six faults"),
        ("port 8080", "port 8081"),
        ("sum: 41", "sum: 42"),
        ("deadbeef", "beefdead"),
        ("/tmp/work", "/tmp/other"),
        (
            "6f1c0a9e-1d2b-4c3d-8e9f-0a1b2c3d4e5f 6f1c0a9e-1d2b-4c3d-8e9f-0a1b2c3d4e5f",
            "6f1c0a9e-1d2b-4c3d-8e9f-0a1b2c3d4e5f 00000000-1d2b-4c3d-8e9f-0a1b2c3d4e5f",
        ),
    ],
)
def test_what_is_asked_is_one(first: str, second: str) -> None:
    assert not same(first, second)


def test_names_of_the_run_and_fields_of_the_session_are_left_out() -> None:
    def canonical(root: str, port: int, **more: Any) -> Canonical:
        names = Names.of({f"{root}/workspace": "/attempt/workspace", root: "<box>", f"h:{port}": "<gateway>"})
        body = {"input": [f"cd {root}/workspace; cat {root}/x; curl h:{port}"], "model": "m", **more}
        return Canonical("POST", "/v1/responses", Normaliser(names).body(body))

    first = canonical("/tmp/a-1", 4001, prompt_cache_key="one", metadata={"user_id": "u1"})
    second = canonical("/var/b", 4002, prompt_cache_key="two")
    assert first.body == {
        "input": ["cd /attempt/workspace; cat <box>/x; curl <gateway>"],
        "model": "m",
    }
    assert first.digest == second.digest
    assert first.digest != canonical("/var/b", 4002, temperature=0).digest
    assert first.digest == Canonical("POST", "/v1/responses", dict(reversed(first.body.items()))).digest


ASKED = Canonical("POST", "/v1/responses", {"input": "hi", "model": "m"})
SSE = {"content-type": "text/event-stream"}


def tape(root: Path, scope: str = "d/t/s.1", *answers: Answer, asked: Canonical = ASKED) -> Recorder:
    made = Recorder(root, Path(scope), lambda text: text.replace("SECRET", "***"))
    made.begin()
    for answer in answers:
        made.write(made.number(), asked, {"content-type": "application/json"}, answer)
    return made


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, SSE, b'event: a\ndata: {"x": "\xc3\xa9"}\n\ndata: [DONE]\n\n'),
        Answer(200, SSE, b"data: {}\n\ndata: ha", "cut"),
        Answer(500, {"content-type": "application/json", "retry-after": "3"}, b'{"error": {"message": "x"}}'),
        Answer(200, {"content-type": "text/html"}, b"<html>\n"),
        Answer(200, {}, b"\xff\xfe\x00"),
        Answer(None, {}, b"", "client_gone"),
    ],
)
def test_an_answer_comes_back_as_it_was(tmp_path: Path, answer: Answer) -> None:
    tape(tmp_path, "d/t/s.1", answer)
    assert Player(Recording(tmp_path), Path("d/t/s.1")).answer(ASKED) == answer


def test_the_files_can_be_read_and_hold_no_secret(tmp_path: Path) -> None:
    tape(tmp_path, "d/t/s.1", Answer(200, SSE, b'data: {"x": "SECRET"}\n\ndata: [DONE]\n\n'))
    (path,) = tmp_path.rglob("*.json")
    assert path.relative_to(tmp_path) == Path(f"d/t/s.1/0001-{ASKED.digest[:16]}.json")
    found = load(path)
    assert found["request"]["body"] == {"input": "hi", "model": "m"}
    assert found["response"]["events"] == ['data: {"x": "***"}', "data: [DONE]", ""]
    assert b"SECRET" not in path.read_bytes()


def test_the_same_request_gets_its_answers_in_order_and_then_the_last(tmp_path: Path) -> None:
    answers = [Answer(500, {}, b"one"), Answer(200, {}, b"two")]
    tape(tmp_path, "d/t/s.1", *answers)
    tape(tmp_path, "d/t/s.2", Answer(200, {}, b"other attempt"))
    found = Recording(tmp_path)
    player = Player(found, Path("d/t/s.1"))
    assert [player.answer(ASKED) for _ in range(3)] == [*answers, answers[1]]
    # Each session of an attempt goes on where the last one stopped, each attempt begins anew.
    assert Player(found, Path("d/t/s.2")).answer(ASKED) == Answer(200, {}, b"other attempt")
    assert Player(found, Path("d/t/s.in-another-box")).answer(ASKED) == answers[0]
    assert player.answer(Canonical("POST", "/v1/responses", {"input": "no"})) is None


def test_an_attempt_that_is_recorded_again_replaces_its_own_calls_only(tmp_path: Path) -> None:
    tape(tmp_path, "d/t/s.1", Answer(200, {}, b"1"), Answer(200, {}, b"2"))
    tape(tmp_path, "d/t/s.2", Answer(200, {}, b"3"))
    (tmp_path / "d/t/s.1/notes.json").write_text("{}")
    tape(tmp_path, "d/t/s.1", Answer(200, {}, b"new"))
    names = sorted(str(path.relative_to(tmp_path))[:13] for path in tmp_path.rglob("*.json"))
    assert names == ["d/t/s.1/0001-", "d/t/s.1/notes", "d/t/s.2/0001-"]


def test_a_date_of_the_task_that_was_the_day_of_the_recording(tmp_path: Path) -> None:
    """It is a date like any other on the day of the replay, and was "today" when it was recorded."""
    text = f"invoices of {today():%Y-%m-%d}"
    body = Normaliser(Names()).body({"input": text})
    tape(tmp_path, "d/t/s.1", Answer(200, {}, b"x"), asked=Canonical("POST", "/p", body))
    (path,) = tmp_path.rglob("*.json")
    earlier = load(path)
    earlier["recorded"] = "2001-02-03"
    earlier["request"]["body"] = {"input": f"{text}, due <now>"}
    path.write_text(json.dumps(earlier))
    found = Recording(tmp_path)
    assert found.days == {date(2001, 2, 3)}
    normalise = Normaliser(Names(), found.days)
    asked = Canonical("POST", "/p", normalise.body({"input": f"{text}, due 2001-02-03"}))
    assert Player(found, Path("d/t/s.1")).answer(asked) is not None


def test_the_difference_is_to_the_nearest_request_and_is_bounded(tmp_path: Path) -> None:
    def asked(*lines: str) -> Canonical:
        return Canonical("POST", "/p", {"input": "\n".join(lines)})

    lines = [f"line {number}" for number in range(200)]
    tape(tmp_path, "d/t/a", Answer(200, {}, b"x"), asked=asked(*lines))
    tape(tmp_path, "d/t/b", Answer(200, {}, b"x"), asked=asked("nothing", "of", "that"))
    long = "y" * 3000
    changed = asked(*lines[:100], "new", *lines[101:], long)
    text = Player(Recording(tmp_path), Path("d/t/b")).difference(changed)
    assert "d/t/a/0001-" in text
    assert "-line 100" in text.splitlines()
    assert "+new" in text.splitlines()
    assert max(map(len, text.splitlines())) < 400
    many = difference([f"a{number}" for number in range(500)], [f"b{number}" for number in range(500)])
    assert len(many) == 41
    assert many[-1].endswith("more lines]")
    judge = Player(Recording(tmp_path), Path("d/t/b"), private=True).difference(changed)
    assert "d/t/a/0001-" in judge
    assert "line" not in judge
    other = Player(Recording(tmp_path), Path("d/t/b")).difference(Canonical("POST", "/q", {}))
    assert "nor any other call of that path" in other


def test_a_long_line_is_shown_where_it_differs() -> None:
    rows = difference(["x" * 5000 + "old" + "z" * 5000], ["x" * 5000 + "new" + "z" * 5000])
    assert any("old" in row for row in rows)
    assert any("new" in row for row in rows)


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", '{"format": "ageval.recording/9"}'])
def test_a_file_that_is_no_recorded_call(tmp_path: Path, text: str) -> None:
    path = tmp_path / "0001-0123456789abcdef.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not a recorded call"):
        Recording(tmp_path)
    path.unlink()
    with pytest.raises(ConfigError, match="holds no recorded call"):
        Recording(tmp_path)


def test_long_names_of_scopes_stay_apart() -> None:
    first, second = (scope_name("a/b", "t", ["r", "x" * 120, end]) for end in "12")
    assert first != second
    assert max(map(len, first.parts)) <= 110
    assert scope_name("../x", "..", ["a/../b", None]).parts == ("_x", "_", "a_.._b")
