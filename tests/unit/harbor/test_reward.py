"""What is a reward, and what is not."""

from __future__ import annotations

import pytest

from pytest_ageval.attempt.harbor.reward import Found, primary, read_rewards
from pytest_ageval.errors import EvaluatorError

ABSENT = Found()


def txt(content: str | bytes) -> Found:
    data = content if isinstance(content, bytes) else content.encode()
    return Found("file", data, len(data))


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1.0), (" 1 ", 1.0), ("+1", 1.0), ("0", 0.0), ("1\n\n", 1.0), ("\ufeff1", 1.0), ("0.25", 0.25),
     ("1e-400", 0.0), (".5", 0.5)],
)  # fmt: skip
def test_numbers_of_a_text(text: str, value: float) -> None:
    assert read_rewards(txt(text), ABSENT) == {"reward": value}


@pytest.mark.parametrize(
    ("text", "title"),
    [("nan", "reward_invalid"), ("inf", "reward_invalid"), ("Infinity", "reward_invalid"),
     ("1_0", "reward_invalid"), ("\u0661", "reward_invalid"), ("1e999", "reward_invalid"),
     ("0x1", "reward_invalid"), ("1,0", "reward_invalid"), ("", "reward_invalid"), ("\n", "reward_invalid"),
     ("1.5", "reward_out_of_range"), ("-0.5", "reward_out_of_range"), ("17", "reward_out_of_range"),
     (b"\xff\xfe1", "reward_invalid"), ("1 2", "reward_invalid")],
)  # fmt: skip
def test_texts_that_are_no_reward(text: str | bytes, title: str) -> None:
    with pytest.raises(EvaluatorError) as error:
        read_rewards(txt(text), ABSENT)
    assert error.value.title == title


@pytest.mark.parametrize(
    ("text", "rewards"),
    [('{"reward": 1}', {"reward": 1.0}), ("1\n\n", {"reward": 1.0}), ("\ufeff1", {"reward": 1.0}),
     ('{"acc": 0.5, "format": 1}', {"acc": 0.5, "format": 1.0}), ("{}", {})],
)  # fmt: skip
def test_documents(text: str, rewards: dict[str, float]) -> None:
    assert read_rewards(ABSENT, txt(text)) == rewards


@pytest.mark.parametrize(
    "text",
    ["", "{", '"1"', "[1]", "true", '{"reward": "1.0"}', '{"reward": null}', '{"reward": true}', "1,0", "0x1",
     '{"reward": NaN}', "NaN", "Infinity", '{"reward": 0, "reward": 1}', '{"reward": {"value": 1}}',
     "[" * 100_000],
)  # fmt: skip
def test_documents_that_are_no_reward(text: str) -> None:
    with pytest.raises(EvaluatorError) as error:
        read_rewards(ABSENT, txt(text))
    assert error.value.title == "reward_invalid"
    assert len(str(error.value)) < 600


def test_two_files() -> None:
    assert read_rewards(txt("1"), txt('{"reward": 1, "style": 0.2}')) == {"reward": 1.0, "style": 0.2}
    with pytest.raises(EvaluatorError, match="reward_conflict"):
        read_rewards(txt("0"), txt('{"reward": 1}'))


def test_nothing_and_other_things() -> None:
    with pytest.raises(EvaluatorError, match="reward_missing"):
        read_rewards(ABSENT, ABSENT)
    with pytest.raises(EvaluatorError, match="a symbolic link"):
        read_rewards(Found("other", what="a symbolic link"), txt("1"))
    with pytest.raises(EvaluatorError, match="reward_too_large"):
        read_rewards(Found("file", b"1", 3 << 30), ABSENT)


def test_which_reward_decides() -> None:
    assert primary({"reward": 0.5, "acc": 1.0}) == 0.5
    assert primary({"acc": 1.0}) == 1.0
    assert primary({"acc": 0.5, "format": 1.0}, "acc") == 0.5
    with pytest.raises(EvaluatorError, match=r"reward key .acc. not in \{pass\}"):
        primary({"pass": 1.0}, "acc")
    with pytest.raises(EvaluatorError, match="reward_ambiguous"):
        primary({"acc": 0.5, "format": 1.0})
    with pytest.raises(EvaluatorError, match="reward_missing"):
        primary({})
