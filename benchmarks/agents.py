"""Every coding agent at one real task, on one or more kinds of box, with a scripted model: does it run?

    python -m benchmarks.agents --box local --box docker --box ssh [--agent NAME ...]

Prints one row a pair of agent and box: version, verdict, whether its calls passed the model gateway, where
the figures of its usage come from, with its prompt and completion tokens, seconds from the start of the
agent's process to its first request to the model, and the peak of the resident memory of its process tree
in MiB (shared pages are counted once for each process). An ACP agent is found by a variable that its
processes inherit, so boxes must be on this machine, and what other users run is only seen by root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ageval_executors.acp.entries import ENTRIES
from ageval_executors.openhands.executor import VERSION as OPENHANDS
from pytest_ageval.testing.scripted_model import ScriptedModel, Shell, Text, Write
from pytest_ageval.testing.scripted_model.request import Request
from pytest_ageval.testing.scripted_model.turns import Turn

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "datasets" / "quickstart"
SOLUTION = QUICKSTART / "tasks" / "fix-parser" / "solution" / "ini2json.py"
MARK = "AGEVAL_BENCHMARK"
#: Seconds between two looks at the processes, and how many looks one gets that has no mark.
PERIOD = 0.15
LOOKS = 5
GATEWAY = ("docker", "network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")

# Some agents refuse to write over a file that they have not read.
SCRIPT = (
    Shell("python3 -m unittest"),
    Shell("rm ini2json.py"),
    Write("ini2json.py", SOLUTION.read_text(encoding="utf-8")),
    Text("ini2json.py does all that FORMAT.md says now."),
)
WRITE = f"cat > ini2json.py <<'PROGRAM'\n{SOLUTION.read_text(encoding='utf-8')}PROGRAM"


def _keys(*commands: str, done: bool = False) -> Text:
    """What Terminus takes: keystrokes."""
    rows = [{"keystrokes": text, "duration": 1.0} for text in commands]
    return Text(json.dumps({"analysis": "a", "plan": "p", "commands": rows, "task_complete": done}))


#: Agents that are no ACP agents: their version, and what the model says to them.
OTHERS: dict[str, tuple[str, tuple[Turn, ...]]] = {
    "miniswe": (
        "2.4.6",
        (Shell("python3 -m unittest"), Shell(WRITE), Shell("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
    ),
    "openhands-sdk": (OPENHANDS, (Shell("python3 -m unittest"), Shell(WRITE), SCRIPT[-1])),
    "terminus-2": (
        "-",
        (_keys("python3 -m unittest\n"), _keys(WRITE + "\n"), _keys(done=True), _keys(done=True)),
    ),
}
AGENTS = sorted([*ENTRIES, *OTHERS])
#: The key in the environment of the run. With the gateway the model sees it, and the agent does not.
KEY = "sk-benchmark-0123456789abcdef"
#: Models whose names the agents know; some behave differently with a name that they do not.
MODELS = {"codex": "gpt-5.5", "claude": "claude-sonnet-4-5", "gemini": "gemini-2.5-pro"}


@dataclass
class Row:
    """What one run came to."""

    agent: str
    box: str
    version: str
    verdict: str
    gateway: str
    usage: str
    first_request: float | None
    peak_mib: float
    seconds: float
    note: str = ""

    def line(self) -> str:
        """A row of a Markdown table."""
        first = f"{self.first_request:.1f}" if self.first_request is not None else "-"
        peak = f"{self.peak_mib:.0f}" if self.peak_mib else "-"
        cells = (
            self.agent,
            self.box,
            self.version,
            self.verdict,
            self.gateway,
            self.usage,
            first,
            peak,
            f"{self.seconds:.0f}",
            self.note,
        )
        return "| " + " | ".join(cells) + " |"


HEAD = (
    "| agent | box | version | verdict | gateway | usage | first request s | peak MiB | whole run s | note |"
    "\n|---|---|---|---|---|---|---|---|---|---|"
)


class Watch:
    """Samples the processes that carry the mark; `started` is when the first one was seen."""

    def __init__(self, mark: str) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self._stop = threading.Event()
        #: How often a process was looked at; -1: it has the mark.
        self._looks: dict[int, int] = {}
        self.started: float | None = None
        self.peak = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not self._stop.wait(PERIOD):
            total = 0
            for pid in self._marked():
                with contextlib.suppress(OSError, IndexError, ValueError):
                    total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
            if total and self.started is None:
                self.started = time.monotonic()
            self.peak = max(self.peak, total)

    def _marked(self) -> Iterator[int]:
        alive = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}
        for gone in self._looks.keys() - alive:
            del self._looks[gone]
        for pid in alive:
            looks = self._looks.get(pid, 0)
            # A process may be between fork and exec: until it has the mark it is looked at again.
            if 0 <= looks < LOOKS:
                with contextlib.suppress(OSError):
                    # The clients of a box (docker, ssh) name the variable in their arguments only.
                    found = self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                    self._looks[pid] = -1 if found else looks + 1
            if self._looks.get(pid) == -1:
                yield pid


def run(agent: str, box: str, options: Sequence[str], host: str) -> Row:
    """One attempt at ``fix-parser``."""
    version, script = OTHERS.get(agent) or (" ".join(ENTRIES[agent].packages.values()), SCRIPT)
    times: list[float] = []

    def note(request: Request) -> None:
        times.append(time.monotonic())

    mark = f"{agent}-{box}-{os.getpid()}"
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="ageval-agents-") as folder,
        ScriptedModel(script, by=note, host=host) as model,
        Watch(mark) as watch,
    ):
        url = model.gemini_base_url if agent == "gemini" else model.base_url
        name = next((model for start, model in MODELS.items() if agent.startswith(start)), "scripted-model")
        environment = json.dumps({MARK: mark})
        command = [sys.executable, "-m", "pytest", str(QUICKSTART), "-k", "fix-parser", "-q"]
        command += ["-p", "no:cacheprovider", "--ageval-dir", folder, "--box", box, *options]
        command += ["--agent", agent, "--model", name, "--base-url", url]
        if agent in ENTRIES:
            command += ["--set", f"/agent_profiles/*/options/env={environment}"]
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **_key_variables()},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        keys = {request.api_key for request in model.requests}
        results = [json.loads(path.read_text()) for path in Path(folder, "runs").glob("*/result.json")]
        routed, usage = _route(Path(folder)), _usage(Path(folder))
    result = results[0] if results else {"status": "no result", "error": {"title": done.stdout[-300:]}}
    error = result.get("error") or {}
    first = times[0] - watch.started if times and watch.started is not None else None
    return Row(
        agent,
        box,
        version,
        result["status"],
        routed,
        usage,
        first,
        watch.peak / 2**20,
        time.monotonic() - began,
        " ".join([*str(error.get("title", "")).split(), *([] if keys <= {KEY} else ["key not put on"])]),
    )


def _key_variables() -> dict[str, str]:
    names = {entry.key_env for entry in ENTRIES.values() if entry.key_env} | {"OPENAI_API_KEY", "LLM_API_KEY"}
    return dict.fromkeys(names, KEY)


def _route(folder: Path) -> str:
    """``yes`` with the number of calls that passed the gateway, or ``no`` and why not."""
    for path in folder.glob("runs/*/summary.json"):
        facts = json.loads(path.read_text())["facts"]
        found = [
            fact["detail"] for fact in facts if fact["name"] == "model_gateway" and fact["phase"] == "run"
        ]
        if not found:
            return "no: the loop is on the host" if any(folder.glob("runs/*/agent/invocations/*")) else "-"
        if not found[-1]["used"]:
            return f"no: {found[-1]['reason']}"
        calls = path.parent / "agent" / "model-calls.jsonl"
        rows = [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []
        return f"yes, {sum(row['wire'] not in ('other', 'count_tokens') for row in rows)} calls"
    return "-"


def _usage(folder: Path) -> str:
    """Where the figures of the first turn come from, its prompt and completion tokens."""
    for path in folder.glob("runs/*/agent/invocations/*/metadata.json"):
        usage = json.loads(path.read_text())["usage"]
        figures = f"{usage.get('prompt_tokens')}/{usage.get('completion_tokens')}"
        return f"{usage.get('source')} {figures}"
    return "-"


@contextlib.contextmanager
def box_options(box: str) -> Iterator[tuple[list[str], str]]:
    """Options of a box that reaches a model of this machine, and the address where that listens."""
    if box == "docker":
        # What does not pass the gateway reaches this machine at the address of the containers' bridge.
        found = subprocess.run(GATEWAY, capture_output=True, text=True, check=True)
        yield [], found.stdout.strip()
    elif box == "ssh":
        sys.path.insert(0, str(ROOT / "tests"))
        from support.sshd import sshd

        with tempfile.TemporaryDirectory() as folder, sshd(Path(folder)) as server:
            yield [f"--box-option={name}={value}" for name, value in server.options.items()], "127.0.0.1"
    else:
        yield [], "127.0.0.1"


def main() -> int:
    """Run what the arguments ask for; 0 when everything passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--agent", action="append", choices=AGENTS)
    parser.add_argument("--box", action="append", choices=("local", "docker", "ssh"))
    arguments = parser.parse_args()
    print(HEAD, flush=True)
    rows = []
    for box in arguments.box or ["local"]:
        with box_options(box) as (options, host):
            for agent in arguments.agent or AGENTS:
                rows.append(run(agent, box, options, host))
                print(rows[-1].line(), flush=True)
    return 0 if all(row.verdict == "PASS" for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
