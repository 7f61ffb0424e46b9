"""``pytest-ageval check``: does each task accept its solution, reject idleness, and resist tampering?"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_ageval.cli_output import complain, say
from pytest_ageval.soundness.agents import TAMPERERS
from pytest_ageval.soundness.judge import Soundness, judge

#: Words for a tick and a cross that every terminal can show.
GOOD, BAD = "yes", "NO"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which tasks, how often, and in which box."""
    parser.add_argument("path", type=Path, help="a data set, a directory of Harbor tasks, or one task")
    parser.add_argument("-k", metavar="EXPRESSION", help="only these tasks, as pytest's -k")
    parser.add_argument("--attempts", type=int, default=2, metavar="N", help="of oracle and nop (default 2)")
    parser.add_argument("--no-tamper", action="store_true", help="leave the tampering agents out")
    parser.add_argument("--box", metavar="KIND", help="kind of box")
    parser.add_argument(
        "--box-option", action="append", default=[], metavar="NAME=VALUE", help="option of it"
    )
    parser.add_argument("-n", default=None, metavar="N", help="processes (needs pytest-xdist)")
    parser.add_argument("--evidence", type=Path, metavar="DIR", help="keep the attempts here")
    parser.add_argument("--json", action="store_true", help="one JSON object for each task")


def check(options: argparse.Namespace) -> int:
    """Run the agents over the tasks and say what came of it.

    Exit code 0: every task is sound; 1: one is not; 2: it could not be found out.
    """
    with tempfile.TemporaryDirectory(prefix="ageval-check-") as scratch:
        log = Path(scratch, "log.jsonl")
        evidence = options.evidence or Path(scratch, "evidence")
        runs = [(["oracle", "nop"], options.attempts)]
        if not options.no_tamper:
            runs.append(([cls.kind for cls in TAMPERERS], 1))
        for agents, attempts in runs:
            code, output = _run(options, agents, attempts, log, evidence)
            if code not in (0, 1):
                complain(output)
                return 2
        rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []
    found = judge(rows)
    if not found:
        complain(f"no attempt was made at {options.path}:\n{output}")
        return 2
    for line in _as_json(found) if options.json else table(found, kept=options.evidence is not None):
        say(line)
    return 0 if all(task.sound for task in found) else 1


def _run(
    options: argparse.Namespace, agents: Sequence[str], attempts: int, log: Path, evidence: Path
) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", str(options.path), "-q", "-p", "no:cacheprovider"]
    command += ["-p", "pytest_ageval.soundness.plugin", f"--ageval-check-log={log}"]
    command += [f"--ageval-agent={agent}" for agent in agents]
    command += [f"--ageval-attempts={attempts}", f"--ageval-dir={evidence}", "--ageval-exit=pytest"]
    command += [f"--ageval-box={options.box}"] if options.box else []
    command += [f"--ageval-box-option={given}" for given in options.box_option]
    command += ["-k", options.k] if options.k else []
    command += ["-n", str(options.n)] if options.n else []
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def _as_json(found: Sequence[Soundness]) -> Iterator[str]:
    for task in found:
        yield json.dumps(task.as_dict(), ensure_ascii=False)


def table(found: Sequence[Soundness], *, kept: bool) -> Iterator[str]:
    """A line for each task, then what is to be said of those that are not sound."""
    rows = [("task", "oracle accepted", "nop rejected", "stable", "tamper-proof")]
    rows += [
        (
            task.task,
            _share(task.oracle, "PASS"),
            _share(task.nop, "FAIL"),
            GOOD if task.stable else BAD,
            "-" if not task.tampered else BAD if task.fooled_by else GOOD,
        )
        for task in found
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
    about = {cls.kind: cls.about for cls in TAMPERERS}
    for task in found:
        for name in task.fooled_by:
            yield f"{task.task}: {name} passed: {about[name]}"
        for text in dict.fromkeys(task.errors):
            yield f"{task.task}: {text}"
        for agent, where in sorted(task.evidence.items()) if kept else ():
            yield f"{task.task}: evidence of {agent}: {where}"
    sound = sum(task.sound for task in found)
    yield f"{sound} of {len(found)} task{'s' if len(found) != 1 else ''} sound"


def _share(statuses: Sequence[str], wanted: str) -> str:
    good = statuses.count(wanted)
    return f"{GOOD if statuses and good == len(statuses) else BAD} ({good}/{len(statuses)})"
