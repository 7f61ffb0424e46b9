"""Suite runs: all attempts of one pytest session over one data set, and what can be said of them.

suite = read_suite(Path("datasets/quickstart/.ageval/suite-runs/3f2a9c1d"))
suite.settled["datasets/quickstart/tasks/fix-parser/task.yaml::fix-parser[codex]"].status
"""

from pytest_ageval.suite.places import SuiteLayout, find_suite, suites
from pytest_ageval.suite.record import Settled, Suite, SuiteHeader, SuiteWriter, read_suite

__all__ = [
    "Settled",
    "Suite",
    "SuiteHeader",
    "SuiteLayout",
    "SuiteWriter",
    "find_suite",
    "read_suite",
    "suites",
]
