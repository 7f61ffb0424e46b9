"""What a session holds for each attempt, measured as it grows; pytest's own share is measured too."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conftest import DataSet

#: Bytes that an attempt may add to what pytest keeps of any test: its row, its properties, its logs' tails.
#: Its configuration, its box or its trajectory alone are more.
BYTES = 32 * 1024

#: After how many tests of a session it is looked for the first time.
FIRST = 20

PROBE = """
import ast, gc, json, os, sys, tracemalloc
import pytest
from pathlib import Path

sources = []

# pathlib interns the parts of paths. The interpreter's table of interned strings doubles now and then, by
# megabytes: not while it is measured.
interned = [sys.intern(f"part {number}") for number in range(200_000)]

def parse(*arguments, real=ast.parse, **more):
    if "_pytest" in sys._getframe(1).f_code.co_filename:
        sources.append(arguments)
    return real(*arguments, **more)

class Probe:
    ended, before = 0, None

    def look(self):
        gc.collect()
        return self.ended, tracemalloc.get_traced_memory()[0]

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self):
        self.ended += 1
        if self.ended == FIRST:
            self.before = self.look()
            ast.parse = parse

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        if self.before is None:
            return
        now = self.look()
        kinds = [type(each).__name__ for each in gc.get_objects()]
        Path(os.environ["PROBED"]).write_text(json.dumps({
            "each": (now[1] - self.before[1]) / (now[0] - self.before[0]),
            "tests": now[0],
            "sources": len(sources),
            "alive": {name: kinds.count(name) for name in ("Attempt", "AttemptFace", "LocalBox")},
        }))

def pytest_configure(config):
    tracemalloc.start(1)
    config.pluginmanager.register(Probe())
"""


@pytest.fixture
def measure(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run pytest in a process of its own; what it held."""
    pytester.makepyfile(probe=PROBE.replace("FIRST", str(FIRST)))

    def run(*arguments: str) -> dict[str, Any]:
        where = pytester.path / "probed.json"
        monkeypatch.setenv("PROBED", str(where))
        pytester.runpytest_subprocess("-p", "probe", "-p", "no:cacheprovider", "-q", *arguments)
        found: dict[str, Any] = json.loads(where.read_text())
        return found

    return run


@pytest.mark.parametrize("in_flight", ["1", "8"])
def test_a_session_keeps_little_of_an_attempt(
    demo: DataSet, pytester: pytest.Pytester, measure: Any, in_flight: str
) -> None:
    """The trajectory of each is 200 kB long."""
    for name in ("one", "two"):
        demo.task(name, run=LONG)
    (demo.root / "tasks/two/evaluator.py").write_text(FAILS)
    pytester.makepyfile(test_bare="def test_it(number): assert number % 2\n")
    pytester.makeconftest(
        "def pytest_generate_tests(metafunc):\n"
        "    if 'number' in metafunc.fixturenames:\n"
        "        metafunc.parametrize('number', range(120))\n"
    )
    bare = measure("test_bare.py", "--show-capture=no")
    options = ("--junitxml=x.xml", "--in-flight", in_flight, "--box-option", "isolation=none")
    ours = measure(str(demo.root), "--attempts", "30", *options)
    assert (bare["tests"], ours["tests"]) == (120, 60)
    assert bare["sources"] > 0  # of each failed test
    assert ours["sources"] == 0
    assert sum(ours["alive"].values()) <= 4, ours  # what the last report, or the last exception, still names
    assert ours["each"] < bare["each"] + BYTES, (bare, ours)


LONG = """
def run(ctx):
    for number in range(2000):
        print("x" * 100)
"""

FAILS = """
def evaluate(inputs):
    return {"status": "FAIL", "score": 0.0}
"""
