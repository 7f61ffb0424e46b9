"""Many attempts at once, many of which go wrong: does each end as it must, and is nothing left over?

    python -m benchmarks.soak --count 2000 --in-flight 200 --seed 1

Each task has one fault, or none (`soak_tasks.py`), and therefore one right outcome. After the run JUnit XML,
the record of the suite run and the attempts' results are compared with it; processes, directories, file
descriptors, mounts and notes are looked for; the memory at a quarter of the run is compared with that at its
end. The exit code is 1 when something is not as it must be. ``--kill-at 0.4`` ends the session with SIGKILL
when 40 % have settled, and goes on with ``--resume``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import measure, soak_tasks
from benchmarks.soak_tasks import DISK_FULL, Kind
from pytest_ageval.suite import read_suite
from pytest_ageval.testing.scripted_model import ScriptedModel

#: Kilobytes by which a process may grow for each attempt after a quarter of the run, and besides.
#: Most of the former is what pytest and its JUnit XML hold: a report with the tails of its logs.
GROWTH = 40
SLACK = 8 * 1024

#: Seconds in which what a session has started must be gone after its end.
GONE_SECONDS = 10.0

PR_SET_CHILD_SUBREAPER = 36

#: What an attempt came to: its status, and the title of its error.
Outcome = tuple[str, str | None]


@dataclass
class Soak:
    """One run of the soak in the directory `root`."""

    root: Path
    kinds: Mapping[str, Kind]
    workers: int
    in_flight: int
    problems: list[str] = field(default_factory=list)
    wall: float = 0.0

    @property
    def junit(self) -> Path:
        return self.root / "junit.xml"

    @property
    def probes(self) -> Path:
        return self.root / "probes"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    @property
    def evidence(self) -> list[Path]:
        return sorted(self.root.glob("data/*/.ageval"))

    def wrong(self, text: str) -> None:
        self.problems.append(text)

    # -- the session -----------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        here = str(Path(__file__).parents[1])
        paths = os.pathsep.join(filter(None, [here, kept.get("PYTHONPATH")]))
        return {**kept, "TMPDIR": str(self.temporary), "SOAK_PROBE": str(self.probes), "PYTHONPATH": paths}

    def command(self) -> list[str]:
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "data",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "benchmarks.soak_probe",
        ]
        argv += ["--rootdir", ".", "--junitxml", self.junit.name, "--in-flight", str(self.in_flight)]
        return [*argv, *(["-n", str(self.workers)] if self.workers else [])]

    def session(self, *options: str, kill_at: float | None = None) -> None:
        """Run pytest to its end, or until that part of the tasks has settled."""
        for directory in (self.probes, self.temporary):
            directory.mkdir(exist_ok=True)
        begun = time.monotonic()
        with (self.root / "pytest.log").open("ab") as log:
            process = subprocess.Popen(
                [*self.command(), *options],
                cwd=self.root,
                env=self.environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
            if kill_at is not None:
                self._kill(process, int(kill_at * len(self.kinds)))
            code = process.wait()
        self.wall += time.monotonic() - begun
        if code != (1 if kill_at is None else -signal.SIGKILL):
            self.wrong(f"pytest ended with {code}; see {self.root / 'pytest.log'}")

    def _kill(self, process: subprocess.Popen[bytes], settled: int) -> None:
        while process.poll() is None and sum(1 for _ in self._lines()) < settled:
            time.sleep(0.1)
        process.kill()

    def _lines(self) -> Iterator[bytes]:
        for evidence in self.evidence:
            for file in evidence.glob("suite-runs/*/attempts.jsonl"):
                yield from file.read_bytes().splitlines()

    def clean(self) -> None:
        """What a session that was killed has left, the command removes."""
        argv = [sys.executable, "-m", "pytest_ageval.cli", "clean"]
        done = subprocess.run(argv, cwd=self.root, env=self.environment(), capture_output=True, text=True)
        if done.returncode:
            self.wrong(f"pytest-ageval clean ended with {done.returncode}: {done.stdout}{done.stderr}")

    # -- outcomes --------------------------------------------------------------------------------

    def check_outcomes(self) -> None:
        expected = {task: (kind.status, kind.title) for task, kind in self.kinds.items()}
        self._compare("JUnit XML", expected, self._reported())
        self._compare("the record of the suite run", expected, self._recorded())
        written = {task: each for task, each in expected.items() if self.kinds[task] is not DISK_FULL}
        self._compare("result.json", written, self._results())

    def _compare(
        self, where: str, expected: Mapping[str, Outcome], found: Sequence[tuple[str, Outcome]]
    ) -> None:
        times = Counter(task for task, _ in found)
        for task in expected:
            if times[task] != 1:
                self.wrong(f"{where}: {task} is there {times[task]} times")
        for task, outcome in found:
            if task not in expected:
                self.wrong(f"{where}: nobody knows {task}")
            elif outcome != expected[task]:
                self.wrong(f"{where}: {task} is {_words(outcome)}, must be {_words(expected[task])}")

    def _reported(self) -> list[tuple[str, Outcome]]:
        found = []
        for case in ElementTree.parse(self.junit).getroot().iter("testcase"):
            properties = {row.get("name"): row.get("value") for row in case.iter("property")}
            tags = [row.tag for row in case if row.tag in ("failure", "error", "skipped")]
            task = str(properties.get("ageval.task"))
            if len(tags) > 1 or "skipped" in tags:
                self.wrong(f"JUnit XML: {task} has {tags}")
            status = {"failure": "FAIL", "error": "ERROR"}.get(tags[0], "?") if tags else "PASS"
            if status != properties.get("ageval.status"):
                self.wrong(f"JUnit XML: {task} is {status}, and says {properties.get('ageval.status')}")
            found.append((task, (status, properties.get("ageval.error.title"))))
        return found

    def _recorded(self) -> list[tuple[str, Outcome]]:
        """The rows that count, and that no other row of the same attempt is in the file."""
        found: list[tuple[str, Outcome]] = []
        for evidence in self.evidence:
            for root in (evidence / "suite-runs").iterdir():
                suite = read_suite(root)
                found += [(row.task_id, (row.status, _title(row.error))) for row in suite.rows]
                for slot, rows in suite.history.items():
                    self.wrong(f"{root}: {slot} has {len(rows) + 1} rows")
        return found

    def _results(self) -> list[tuple[str, Outcome]]:
        found = []
        for path in self.root.glob("data/*/.ageval/runs/*/result.json"):
            row = json.loads(path.read_bytes())
            found.append((str(row["task_id"]), (str(row["status"]), _title(row.get("error")))))
        return found

    # -- what is left ----------------------------------------------------------------------------

    def processes_gone(self) -> None:
        """Orphans become children of this process, so that none is overlooked."""
        deadline = time.monotonic() + GONE_SECONDS
        while (found := _children()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in found:
            self.wrong(f"left over: the process {pid}: {_command_line(pid)}")

    def check_leftovers(self) -> None:
        for path in sorted(self.temporary.rglob("*")):
            # The directory of this user's boxes stays.
            if path.parent != self.temporary or not path.name.startswith("pytest-ageval-"):
                self.wrong(f"left over: {path}")
        for evidence in self.evidence:
            for path in evidence.rglob("*"):
                if path.name.endswith(".tmp"):
                    self.wrong(f"left over: {path}")
        for name, row in self._ends().items():
            for what in row["left"]:
                self.wrong(f"left open in the process {name}: {what}")
            for thread in row["threads"]:
                self.wrong(f"still runs in the process {name}: the thread {thread}")

    # -- memory ----------------------------------------------------------------------------------

    def _probed(self) -> dict[str, list[dict[str, Any]]]:
        return {
            path.stem: [json.loads(line) for line in path.read_text().splitlines()]
            for path in sorted(self.probes.glob("*.jsonl"))
        }

    def _ends(self) -> dict[str, dict[str, Any]]:
        """The last row of each process that has ended in order."""
        return {name: rows[-1] for name, rows in self._probed().items() if "left" in rows[-1]}

    def growth(self) -> list[tuple[str, int, int, int, int, int]]:
        """For each process: attempts, kilobytes at a quarter and at the end, the peak, descriptors."""
        found = []
        for name, rows in self._probed().items():
            ended = [row for row in rows if "descriptors" in row]
            if ended and "left" in rows[-1]:
                quarter = ended[len(ended) // 4]
                most = max(row["descriptors"] for row in ended)
                found.append((name, len(ended), quarter["rss"], ended[-1]["rss"], rows[-1]["peak"], most))
        return found

    def check_memory(self) -> None:
        for name, attempts, before, after, *_ in self.growth():
            allowed = SLACK + GROWTH * attempts * 3 // 4
            if after - before > allowed:
                self.wrong(f"the process {name} grew from {before} to {after} kB, {allowed} kB are allowed")


def _title(error: Any) -> str | None:
    return None if not error else str(error.get("title"))


def _words(outcome: Outcome) -> str:
    return " ".join(filter(None, outcome))


def _children() -> list[int]:
    """Of this process, orphans included; those that have ended are reaped."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    for pid in list(found):
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                found.remove(pid)
        except ChildProcessError:
            found.remove(pid)
    return found


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")[:200]
    except OSError:
        return "?"


@contextmanager
def full_disk(where: Path) -> Iterator[bool]:
    """A file system without room at `where`; False where this user may not mount one."""
    where.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "soak", str(where)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        where.rmdir()
        yield False
        return
    try:
        with (where / "ballast").open("wb", buffering=0) as stream:
            while stream.write(b"\0" * 4096):
                pass
    except OSError:  # it is full
        pass
    try:
        yield True
    finally:
        subprocess.run(["umount", str(where)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="attempts")
    parser.add_argument("--in-flight", type=int, default=200, help="attempts at once, in each process")
    parser.add_argument("-n", type=int, default=0, help="processes of pytest-xdist", dest="workers")
    parser.add_argument("--seed", type=int, default=1, help="which faults are drawn")
    parser.add_argument("--think", type=float, default=4.0, help="the most seconds that the model takes")
    parser.add_argument("--kill-at", type=float, help="kill the session at this part, then resume")
    parser.add_argument("--keep", action="store_true", help="do not remove the directory of the run")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        soak = run(root, options)
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    return 1 if soak.problems else 0


def run(root: Path, options: argparse.Namespace) -> Soak:
    """The whole soak; prints its table."""
    measure.PERIOD = 1.0  # there are many processes to look at
    brain = soak_tasks.Brain(options.seed, options.think)
    with ScriptedModel(by=brain) as model, full_disk(root / "data/full/.ageval/runs") as full:
        kinds = soak_tasks.draw(options.count, options.seed, disk_full=full)
        made = soak_tasks.make(root / "data", kinds, model.base_url)
        soak = Soak(root, made, options.workers, options.in_flight)
        watch = measure.Peak(os.getpid())
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        if options.kill_at is not None:
            soak.session(kill_at=options.kill_at)
            soak.session("--resume", "last")
            soak.clean()
        else:
            soak.session()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        peak = watch.stop()
        soak.processes_gone()
        soak.check_outcomes()
        soak.check_leftovers()
        if (
            options.kill_at is None
        ):  # else the first items of the session are recorded ones, which cost nothing
            soak.check_memory()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    report(soak, options, cpu, peak)
    return soak


def report(soak: Soak, options: argparse.Namespace, cpu: float, peak: float) -> None:
    how = f"--in-flight {options.in_flight}" + (f" -n {options.workers}" if options.workers else "")
    killed = f", killed at {options.kill_at:.0%} and resumed" if options.kill_at is not None else ""
    print(f"{options.count} attempts, {how}, seed {options.seed}{killed}\n")
    print(f"{'fault':22}{'attempts':>9}  outcome")
    for kind, count in sorted(Counter(soak.kinds.values()).items(), key=lambda row: -row[1]):
        print(f"{kind.fault:22}{count:9}  {_words((kind.status, kind.title))}")
    each = cpu / len(soak.kinds)
    print(f"\nwall {soak.wall:.1f} s, CPU {cpu:.1f} s ({each * 1000:.0f} ms an attempt), ", end="")
    print(f"peak of all processes {peak:.0f} MB\n")
    names = ("process", "items", "25 % MB", "100 % MB", "kB/item", "peak MB", "most files")
    print("".join(f"{name:>11}" for name in names))
    for name, attempts, quarter, end, most, files in soak.growth():
        slope = (end - quarter) / max(1, attempts * 3 // 4)
        megabytes = [f"{kilobytes / 1024:.1f}" for kilobytes in (quarter, end, most)]
        row = (name, attempts, *megabytes[:2], f"{slope:.1f}", megabytes[2], files)
        print("".join(f"{value:>11}" for value in row))
    print(f"\nnot as it must be: {len(soak.problems) or 'nothing'}")
    for problem in soak.problems[:40]:
        print(f"  {problem}")


if __name__ == "__main__":
    sys.exit(main())
