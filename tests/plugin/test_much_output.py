"""One attempt whose agent, script and evaluator write much: memory and evidence stay as they are."""

from __future__ import annotations

import re
from pathlib import Path

FLOOD = "yes 'a line of an agent that talks a lot' | head -c {bytes}\n"

RUN = """
import sys
async def run(ctx):
    for _ in range(ctx.params["megabytes"]):
        sys.stdout.write("run.py writes\\n" * 71_000)
    await ctx.agent.session("solver").invoke("go")
"""

EVALUATOR = """
import sys
async def evaluate(inputs):
    for _ in range(inputs["parameters"]["megabytes"]):
        sys.stderr.write("evaluator.py\\n" * 77_000)
    size = await inputs["scoring"].exec("main", ["sh", "-c", "wc -c < trace.log; cat trace.log"])
    return {"status": "PASS", "metrics": {"trace": int(size.stdout.split()[0])}}
"""

PEAK = """
import resource
def pytest_unconfigure():
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "kB")
"""


def test_an_attempt_that_writes_60_mb_each_way_costs_no_memory(demo):
    demo.pytester.makeconftest(PEAK)
    peaks, sizes = [], []
    for megabytes in (1, 60):
        task = demo.task(
            f"m{megabytes}",
            run=RUN,
            evaluator=EVALUATOR,
            roles=("solver",),
            more=f"parameters: {{megabytes: {megabytes}}}\n",
        )
        (task / "solution").mkdir()
        flood = FLOOD.format(bytes=megabytes * 1_000_000)
        script = f"{flood}{flood.strip()} >&2\n{flood.strip()} > trace.log\n"
        (task / "solution" / "solve.sh").write_text(script)
        arguments = ("--agent", "oracle", "--box", "local", "--junitxml", "junit.xml")
        found = demo.pytest(f"datasets/demo/tasks/m{megabytes}", *arguments)
        found.assert_outcomes(passed=1)
        peaks.append(int(re.search(r"peak (\d+) kB", found.stdout.str())[1]) / 1000)
        sizes.append(Path(demo.pytester.path, "junit.xml").stat().st_size)
    assert [result["metrics"]["trace"] for result in demo.results()] in ([1e6, 60e6], [60e6, 1e6])
    # 240 MB more were written; the little that may come with them are heads and tails.
    assert peaks[1] - peaks[0] < 8
    assert sizes[1] - sizes[0] < 20_000
    for attempt in demo.attempts():
        assert sum(file.stat().st_size for file in attempt.rglob("*") if file.is_file()) < 6_000_000
