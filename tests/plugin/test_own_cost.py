"""An attempt's processor time, all of our own processes included, in starts of an empty interpreter."""

from __future__ import annotations

import resource
import subprocess
import sys

FEW, MANY = 4, 24

#: Starts of an empty interpreter that an attempt may cost. One with run.py and evaluator.py was at 3 to 4.5,
#: and at 15 to 17 with ``--ageval-script-start=spawn``.
MOST = 8.0


def spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_an_attempt_costs_no_more_than_a_few_starts_of_python(demo):
    for number in range(MANY):
        demo.task(f"t{number:02}")
    seconds = {}
    for count, select in ((FEW, " or ".join(f"t{number:02}" for number in range(FEW))), (MANY, "t")):
        before = spent()
        demo.pytest("datasets", "--box", "local", "-q", "-k", select).assert_outcomes(
            passed=count, deselected=MANY - count
        )
        seconds[count] = spent() - before
    attempt = (seconds[MANY] - seconds[FEW]) / (MANY - FEW)
    before = spent()
    for _ in range(MANY - FEW):
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    start = (spent() - before) / (MANY - FEW)
    print(f"attempt {attempt * 1000:.1f} ms, start {start * 1000:.1f} ms, ratio {attempt / start:.2f}")
    assert attempt < MOST * start, (attempt, start)
