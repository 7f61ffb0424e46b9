"""Gates say and decide the same however attempts were run: by workers, in flight, over several sessions."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from suites import rows, write

from pytest_ageval.gates.session import EXIT_GATES

from .conftest import CRASHING, FAILING
from .suite_kit import suite_roots

if TYPE_CHECKING:
    from .conftest import DataSet

KNOWN = """
format: ageval.known-failures/1
known_failures:
  - {task: expected, reason: cannot count}
  - {task: good, reason: was mended long ago}
  - {task: gone, reason: no longer there}
"""


@pytest.fixture
def mixed(demo: DataSet) -> DataSet:
    """PASS, FAIL, ERROR and a FAIL that is known, each twice."""
    for name, more in (("good", []), ("bad", [FAILING]), ("broken", [CRASHING]), ("expected", [FAILING])):
        demo.task(name, *more, roles=("solver",))
    (demo.pytester.path / "known.yaml").write_text(KNOWN)
    return demo


def told(result: pytest.RunResult) -> tuple[int, list[str]]:
    """The exit code and the lines of gates and known failures."""
    words = ("gate ", "known failure", "no gate is about")
    return int(result.ret), sorted(line for line in result.outlines if line.startswith(words))


@pytest.mark.parametrize(
    ("gates", "code"),
    [
        (("--fail-under", "25%", "--max-errors", "2", "--baseline", "BASELINE"), 0),
        (("--fail-under", "80%", "--max-errors", "1", "--baseline", "BASELINE"), EXIT_GATES),
        (("--fail-under", "0"), 1),
    ],
    ids=["pass", "fail", "left"],
)
def test_the_same_words_and_exit_code(mixed: DataSet, gates: tuple[str, ...], code: int) -> None:
    found = rows({"good": "PP", "bad": "PP"}, agent="nop", box="local")
    before = write(mixed.pytester.path / "old", "ba5e", found)
    options = ("--agent", "nop", "--attempts", "2", "--known-failures", "known.yaml")
    options = (*options, *(str(before) if text == "BASELINE" else text for text in gates))
    alone = told(mixed.pytest(*options, "-n0"))
    assert alone[0] == code
    assert len(alone[1]) >= len(gates) // 2 + 2
    ways: list[tuple[str, ...]] = [("-n2", "--in-flight=2")]
    if code == 0:
        ways += [("-n2",), ("--in-flight=4",)]
    for way in ways:
        assert told(mixed.pytest(*options, *way)) == alone, way
    if code == 1:
        return
    shutil.rmtree(mixed.root / ".ageval")
    first = mixed.pytest(*options, "-x")  # ends at the first FAIL or ERROR
    assert first.ret in (1, 2)
    (root,) = suite_roots(mixed)
    way = ("-n0",) if code else ("-n2", "--in-flight=2")
    assert told(mixed.pytest(*options, *way, f"--resume={root.name}")) == alone
    if code == 0:  # once more, with all of it recorded, and the options as they were
        assert told(mixed.pytest(*options[4:], f"--resume={root.name}")) == alone
