"""The names of everything inside an attempt directory. No other module spells one out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

#: Where an invocation belongs: the agent under test, or a judge of the evaluate phase.
Surface = Literal["run", "evaluate"]

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_LIMIT = 100


def safe_name(text: str) -> str:
    """`text` as one path segment: no separator, no leading dot, at most 100 characters."""
    return _UNSAFE.sub("_", text).lstrip(".")[:_NAME_LIMIT] or "_"


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one attempt; nothing is created by asking for one."""

    root: Path

    @property
    def lock(self) -> Path:
        """The locked configuration."""
        return self.root / "lock.json"

    @property
    def result(self) -> Path:
        """The outcome; there only when the attempt is settled."""
        return self.root / "result.json"

    @property
    def summary(self) -> Path:
        """Facts and timing."""
        return self.root / "summary.json"

    @property
    def activity(self) -> Path:
        """The step log of the run."""
        return self.root / "activity.jsonl"

    @property
    def trajectory(self) -> Path:
        """What the agent was asked, said and did."""
        return self.root / "trajectory.jsonl"

    @property
    def facts(self) -> Path:
        """Facts that are not in a summary yet, so that a killed process leaves them behind."""
        return self.root / "facts.jsonl"

    @property
    def artifacts(self) -> Path:
        """What the run published and what was harvested."""
        return self.root / "task-artifacts"

    @property
    def evaluation(self) -> Path:
        """What the evaluate phase left."""
        return self.root / "evaluation"

    @property
    def checks(self) -> Path:
        """The evaluator's checks."""
        return self.evaluation / "checks.json"

    @property
    def observation(self) -> Path:
        """The judges' turns, without their prompts."""
        return self.evaluation / "observation.jsonl"

    @property
    def private(self) -> Path:
        """What may hold gold: never exported, never in a report."""
        return self.evaluation / "private"

    @property
    def private_activity(self) -> Path:
        """The step log of the judges."""
        return self.private / "activity.jsonl"

    def verifier_logs(self, step: str) -> Path:
        """What the verifier of a step of a Harbor task left in its directory."""
        return self.private / "verifier" / safe_name(step)

    @property
    def writer(self) -> Path:
        """Who may write here."""
        return self.root / "writer.lock"

    @property
    def box(self) -> Path:
        """The work root of a box on this machine."""
        return self.root / "box"

    @property
    def scoring_box(self) -> Path:
        """The work root of a scoring box on this machine."""
        return self.root / "eval-box"

    @property
    def state(self) -> Path:
        """State that a box on this machine shares with the host."""
        return self.root / "state"

    @property
    def checkpoints(self) -> Path:
        """Snapshots of the workspace."""
        return self.root / "checkpoints"

    @property
    def collected(self) -> Path:
        """What ``evaluation.collect`` fetched."""
        return self.root / "verifier-collect"

    @property
    def collected_manifest(self) -> Path:
        """What was fetched, by row."""
        return self.collected / "manifest.json"

    def collected_entry(self, index: int, name: str) -> Path:
        """Where row `index` of ``evaluation.collect`` puts what it fetched."""
        return self.collected / "entries" / str(index) / safe_name(name)

    @property
    def imported(self) -> Path:
        """Of an attempt of another program: its own files, where they have no place here."""
        return self.root / "imported"

    @property
    def reward(self) -> Path:
        """The rewards of a Harbor task, by step."""
        return self.evaluation / "reward.json"

    def harbor_artifacts(self, step: str) -> Path:
        """What was kept of a step of a Harbor task."""
        return self.artifacts / safe_name(step)

    @property
    def logs(self) -> Path:
        """What run.py and evaluator.py printed."""
        return self.root / "logs"

    def log(self, script: str, stream: str) -> Path:
        """The file of one stream of one script: ``run.stderr``."""
        return self.logs / f"{script}.{stream}"

    def surface(self, surface: Surface) -> Path:
        """The directory of one surface's raw evidence."""
        return self.root / "agent" if surface == "run" else self.evaluation

    def model_calls(self, surface: Surface) -> Path:
        """The model calls that passed the gateway, one a line."""
        return self.surface(surface) / "model-calls.jsonl"

    def invocations(self, surface: Surface) -> Path:
        """The directory of all invocations of one surface."""
        return self.surface(surface) / "invocations"

    def invocation(self, surface: Surface, seq: int, invocation_id: str) -> Path:
        """The directory of one invocation: ``0001-inv_...``."""
        return self.invocations(surface) / f"{seq:04d}-{safe_name(invocation_id)}"

    def session_raw(self, surface: Surface, session_id: str) -> Path:
        """The directory for a vendor's own logs of one session."""
        return self.surface(surface) / "backend_raw" / safe_name(session_id)

    def session(self, surface: Surface, session_id: str) -> Path:
        """What another process needs to continue a session. A judge's may hold gold."""
        base = self.surface("run") if surface == "run" else self.private
        return base / "sessions" / f"{safe_name(session_id)}.json"


#: Files of an invocation directory.
INVOCATION_METADATA = "metadata.json"
INVOCATION_EVENTS = "events.jsonl"
INVOCATION_RESPONSE = "final-response.json"
INVOCATION_REQUEST = "request.json"

#: What of an invocation directory is dropped when raw evidence is not kept.
INVOCATION_RAW = (INVOCATION_EVENTS, INVOCATION_RESPONSE, INVOCATION_REQUEST)
