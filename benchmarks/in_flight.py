"""What it costs to keep many attempts in flight, with a model that takes 2 seconds.

    python -m benchmarks.in_flight [--at-once 1 8 64 256]

Each attempt calls the model once; it is a scripted one, that answers every request after so many seconds.
`--in-flight N` keeps N attempts in one process, `-n N` alone starts a process for each, as pytest-xdist does.
ageval-cli runs the same data set; inspect-ai runs a sample for each attempt and asks the model once more than
there are samples. "ideal" is what the model alone takes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import peers, tables
from benchmarks.attempts import OURS, TASKS, check_inspect
from benchmarks.datasets import make
from benchmarks.measure import Cost, TooLongError, run
from pytest_ageval.testing.scripted_model import Delay, ScriptedModel, Text

#: The most processes that `-n` is asked for.
PROCESSES = 8
ENV = {"AGEVAL_BENCHMARK_KEY": "none", "OPENAI_API_KEY": "none"}

RUN = """\
async def run(ctx):
    async with ctx.agent.session("solver", max_turns=1) as session:
        result = await session.invoke("Say done.")
    ctx.publish_json("answer", {"text": result["text"]})
"""

PROFILES = """\
format: ageval.profiles/1
environment: local
agent_profiles:
  solver:
    executor: openai-http
    base_url: {url}
    api_key: ${{AGEVAL_BENCHMARK_KEY}}
    model: {{id: scripted-model, api: chat}}
"""

#: Takes the number of attempts and an empty directory.
Measure = Callable[[int, Path], Cost]


def by_pytest(ways: list[str], url: str, timeout: float) -> Measure:
    """`pytest` with these options."""

    def measure(attempts: int, scratch: Path) -> Cost:
        root = data_set(scratch / "data", attempts, url)
        argv = [sys.executable, "-m", "pytest", str(root), "-q", "-p", "no:cacheprovider", *ways]
        cost = run(argv, cwd=scratch, env=ENV, timeout=timeout)
        assert f"{attempts} passed" in cost.output, cost.output[-2000:]
        return cost

    return measure


def by_ageval(found: peers.Found, at_once: int, url: str, timeout: float) -> Measure:
    """`ageval run`."""

    def measure(attempts: int, scratch: Path) -> Cost:
        root = data_set(scratch / "data", attempts, url)
        argv = [found.program, "run", str(root), "--max-concurrent-tasks", str(at_once), "--json"]
        cost = run(argv, cwd=scratch, env=ENV, timeout=timeout)
        assert f'"pass":{attempts}' in cost.output, cost.output[-2000:]
        return cost

    return measure


def by_inspect(found: peers.Found, at_once: int, url: str, timeout: float) -> Measure:
    """`inspect eval`."""

    def measure(attempts: int, scratch: Path) -> Cost:
        argv = [found.program, "eval", f"{TASKS}@asking", "-T", f"attempts={attempts}", "--display=none"]
        argv += ["--model=openai/scripted-model", f"--model-base-url={url}", f"--log-dir={scratch / 'logs'}"]
        argv += [f"--max-samples={at_once}", f"--max-connections={at_once}"]
        cost = run(argv, cwd=scratch, env=ENV, timeout=timeout)
        check_inspect(found, scratch / "logs", attempts)
        return cost

    return measure


def rows(
    found: dict[str, peers.Found], at_once: int, url: str, timeout: float
) -> Iterator[tuple[str, str, Measure]]:
    """Who keeps `at_once` attempts in flight, and how."""
    ways = [["-n0", f"--in-flight={at_once}"]]
    if at_once <= PROCESSES:
        ways.append([f"-n{at_once}", "--in-flight=1"])
    elif at_once % 2 == 0:
        ways.append(["-n2", f"--in-flight={at_once // 2}"])
    for way in ways:
        yield OURS, " ".join(way), by_pytest(way, url, timeout)
    if peer := found.get("ageval-cli"):
        yield peer.name, f"--max-concurrent-tasks {at_once}", by_ageval(peer, at_once, url, timeout)
    if peer := found.get("inspect-ai"):
        how = f"--max-samples {at_once} --max-connections {at_once}"
        yield peer.name, how, by_inspect(peer, at_once, url, timeout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument(
        "--attempts", type=int, help="attempts of each run; default: four times as many as at once"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="what the model takes")
    parser.add_argument("--at-most", type=float, default=900, help="seconds for one run")
    peers.add_option(parser)
    options = parser.parse_args()
    found = peers.find(("ageval-cli", "inspect-ai"), options.peer_venv)
    lines: list[list[tables.Cell]] = []
    ratios: list[list[tables.Cell]] = []
    script = [Delay(options.seconds), Text("done")]
    with ScriptedModel(script) as model:
        for at_once in options.at_once:
            attempts = options.attempts or 4 * at_once
            ours: Cost | None = None
            for name, how, measure in rows(found, at_once, model.base_url, options.at_most):
                tables.progress(f"{at_once} at once, {name} {how}")
                cost = _one(measure, attempts)
                lines.append(
                    _line([at_once, attempts, name, how], cost, options.seconds * attempts / at_once)
                )
                if isinstance(cost, Cost):
                    if ours is None and name == OURS:
                        ours = cost
                    elif ours is not None:
                        ratio = [cost.wall / ours.wall, cost.cpu / ours.cpu, cost.peak_mb / ours.peak_mb]
                        ratios.append([at_once, f"{name} {how}", f"{OURS} --in-flight={at_once}", *ratio])
    tables.remark(f"The model takes {options.seconds:g} s.")
    head = ["at once", "attempts", "by", "how", "ideal s", "wall s", "CPU s", "peak MB", "CPU ms each"]
    tables.table(head, lines, [0, 0, None, None, 1, 1, 1, 0, 1])
    tables.table(["at once", "", "divided by", "wall", "CPU", "memory"], ratios, [0, None, None, 2, 2, 2])


def _one(measure: Measure, attempts: int) -> Cost | str:
    with tempfile.TemporaryDirectory(prefix="agb-") as directory:
        try:
            return measure(attempts, Path(directory))
        except TooLongError as error:
            return str(error).rpartition(" was ")[2]


def _line(key: list[tables.Cell], cost: Cost | str, ideal: float) -> list[tables.Cell]:
    if isinstance(cost, str):
        return [*key, ideal, cost, None, None, None]
    each = cost.cpu / float(key[1] or 1) * 1000
    return [*key, ideal, cost.wall, cost.cpu, cost.peak_mb, each]


def data_set(root: Path, attempts: int, url: str) -> Path:
    """So many tasks, each with one call of the model."""
    make(root, attempts)
    (root / "profiles.yaml").write_text(PROFILES.format(url=url))
    for task in (root / "tasks").iterdir():
        (task / "run.py").write_text(RUN)
        with (task / "task.yaml").open("a") as stream:
            stream.write("agent_profiles:\n  - id: solver\n")
    return root


if __name__ == "__main__":
    main()
