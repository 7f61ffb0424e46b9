"""Reads a reward: what the verifier left in its directory, as rewards by name or as an error.

A reward is a finite number from 0 to 1, written as JSON writes numbers. Nothing is guessed: text in
quotes, true and false, other ranges and two files that disagree are errors that quote what was seen.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from pytest_ageval.errors import EvaluatorError

#: Bytes of a reward file that are read. As base64 they fit into what a command's output keeps.
LIMIT = 128 * 1024
#: Characters of it that a message shows.
SHOWN = 200
#: The name of the one number of a reward.txt, and of the reward that decides where there are several.
PRIMARY = "reward"

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)

Kind = Literal["absent", "file", "other"]


@dataclass(frozen=True, slots=True)
class Found:
    """One of the two files: what stands at its path, its content (at most `LIMIT` bytes), its size."""

    kind: Kind = "absent"
    content: bytes = b""
    size: int = 0
    #: Words for what is there when it is no regular file: ``a symbolic link``.
    what: str = ""


def read_rewards(text: Found, document: Found) -> dict[str, float]:
    """The rewards of reward.txt and reward.json; the latter counts where both say the same.

    Raises EvaluatorError ``reward_missing``, ``reward_not_a_file``, ``reward_too_large``,
    ``reward_invalid``, ``reward_out_of_range`` or ``reward_conflict``.
    """
    for name, found in (("reward.txt", text), ("reward.json", document)):
        if found.kind == "other":
            raise EvaluatorError("reward_not_a_file", f"{name} is {found.what}, not a regular file")
        if found.size > LIMIT:
            raise EvaluatorError("reward_too_large", f"{name} has {found.size} bytes; {LIMIT} are read")
    if text.kind == document.kind == "absent":
        raise EvaluatorError(
            "reward_missing", "the verifier wrote neither /logs/verifier/reward.json nor reward.txt"
        )
    single = _from_text(text.content) if text.kind == "file" else None
    if document.kind != "file":
        assert single is not None  # one of the two is there
        return {PRIMARY: single}
    rewards = _from_json(document.content)
    if single is not None and primary(rewards) != single:
        raise EvaluatorError(
            "reward_conflict",
            f"reward.txt says {single:g} and reward.json says {_seen(document.content)}",
        )
    return rewards


def primary(rewards: dict[str, float], key: str | None = None) -> float:
    """The reward that decides: `key`, else ``reward``, else the only one. Raises EvaluatorError."""
    if key is not None:
        if key not in rewards:
            raise EvaluatorError(
                "reward_key_missing", f"reward key {key!r} not in {{{', '.join(sorted(rewards)) or 'none'}}}"
            )
        return rewards[key]
    if PRIMARY in rewards:
        return rewards[PRIMARY]
    if len(rewards) == 1:
        return next(iter(rewards.values()))
    if not rewards:
        raise EvaluatorError("reward_missing", "reward.json holds no reward")
    raise EvaluatorError(
        "reward_ambiguous",
        f"reward.json holds {', '.join(sorted(rewards))}, and none is called {PRIMARY!r}; "
        "name one with --ageval-reward-key",
    )


def _from_text(content: bytes) -> float:
    text = _decoded(content, "reward.txt").strip()
    if not text:
        raise EvaluatorError("reward_invalid", "reward.txt is empty")
    if not _NUMBER.fullmatch(text):
        raise EvaluatorError("reward_invalid", f"reward.txt is not one number: {_seen(content)}")
    return _checked(float(text), text, "reward.txt")


def _from_json(content: bytes) -> dict[str, float]:
    text = _decoded(content, "reward.json")
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise EvaluatorError("reward_invalid", f"reward.json: {error}: {_seen(content)}") from None
    if isinstance(found, bool) or not isinstance(found, int | float | dict):
        raise EvaluatorError(
            "reward_invalid", f"reward.json is neither a number nor a flat object: {_seen(content)}"
        )
    rows = found if isinstance(found, dict) else {PRIMARY: found}
    rewards = {}
    for name, value in rows.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise EvaluatorError("reward_invalid", f"reward.json: {name} is not a number: {_seen(content)}")
        rewards[name] = _checked(float(value), repr(value), f"reward.json: {name}")
    return rewards


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise EvaluatorError("reward_invalid", f"{name} is not UTF-8: {_seen(content)}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"the key {', '.join(twice)} stands twice")
    return found


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def _checked(value: float, text: str, where: str) -> float:
    if not math.isfinite(value):
        raise EvaluatorError("reward_invalid", f"{where}: {text} is not a finite number")
    if not 0.0 <= value <= 1.0:
        raise EvaluatorError("reward_out_of_range", f"{where}: {text} is not between 0 and 1")
    return value


def _seen(content: bytes) -> str:
    text = repr(content[: SHOWN * 2].decode("utf-8", "replace"))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
