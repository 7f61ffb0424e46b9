"""Reading the model's keystrokes: what is taken, what is warned about, what is refused."""

from __future__ import annotations

import json

import pytest

from ageval_executors.terminus.prompts import clipped
from ageval_executors.terminus.reply import Keys, read_json, read_xml


def answer(**fields) -> str:
    return json.dumps({"analysis": "a", "plan": "p", "commands": [], **fields})


def test_whole_answer():
    rows = [{"keystrokes": "ls\n", "duration": 0.5}, {"keystrokes": "C-c"}]
    reply = read_json(answer(commands=rows, task_complete=True))
    assert (reply.analysis, reply.plan, reply.complete) == ("a", "p", True)
    assert reply.commands == [Keys("ls\n", 0.5), Keys("C-c", 1.0)]
    assert (reply.error, reply.warnings) == (None, [])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("I would list the files.", "no JSON object"),
        ('{"analysis": "a", "plan": "p"}', "no JSON object"),
        ('{"analysis": "a", "commands": []}', "missing: plan"),
        (answer(commands="ls"), "not a list"),
        (answer(commands=["ls"]), "command 1 has no keystrokes"),
        (answer(commands=[{"keystrokes": 3}]), "command 1 has no keystrokes"),
        ('{"commands": [{"keystrokes" "ls"}]}', "cannot be read"),
        ("{" * 5000, "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused(text, error):
    reply = read_json(text)
    assert error in (reply.error or "")


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (f"Sure:\n{answer()}", "outside"),
        (f"{answer()}\nDone.", "outside"),
        (answer()[:-1], "missing at the end"),
        (answer(commands=[{"keystrokes": "ls\n"}])[:-2], "missing at the end"),
        (answer(commands=[{"keystrokes": "l", "duration": "soon"}]), "duration is no number"),
        (answer(commands=[{"keystrokes": "l", "wait": 1}]), "unknown: wait"),
        (answer(commands=[{"keystrokes": "make clean"}, {"keystrokes": "make\n"}]), "does not end"),
    ],
)
def test_small_faults_are_mended_and_named(text, warning):
    reply = read_json(text)
    assert reply.error is None
    assert warning in reply.warnings[0]


def test_fence_and_line_ends_in_strings_are_taken_silently():
    text = '```json\n{"analysis": "two\nlines", "plan": "", "commands": [{"keystrokes": "ls\n"}]}\n```'
    reply = read_json(text)
    assert (reply.error, reply.warnings) == (None, [])
    assert reply.commands == [Keys("ls\n")]


def test_braces_before_the_answer_are_passed_over():
    reply = read_json("The set {1, 2} and {} first. " + answer(task_complete="true"))
    assert (reply.error, reply.complete) == (None, True)


def test_xml():
    text = (
        "<response><analysis>a</analysis><plan>p</plan><commands>"
        '<keystrokes duration="0.5">grep x <in >out && ls\n</keystrokes><keystrokes>C-c</keystrokes>'
        "</commands><task_complete>true</task_complete></response>"
    )
    reply = read_xml(text)
    assert (reply.error, reply.complete, reply.analysis) == (None, True, "a")
    assert reply.commands == [Keys("grep x <in >out && ls\n", 0.5), Keys("C-c", 1.0)]
    assert read_xml("<commands><keystrokes>ls</commands>").error == "an element keystrokes is not closed"
    assert read_xml("hello").error == "missing: commands"


@pytest.mark.parametrize("limit", [10, 11, 1000])
def test_clipped_keeps_head_and_tail_within_its_limit(limit):
    text = "ä" * 50 + "z"
    found = clipped(text, limit)
    if limit >= len(text.encode()):
        assert found == text
        return
    head, _, tail = found.split("\n")
    assert len((head + tail).encode()) <= limit
    assert text.startswith(head)
    assert text.endswith(tail)
