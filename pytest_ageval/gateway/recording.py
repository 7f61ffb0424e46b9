"""Recordings: one file a call, readable and diffable, found again by the request's canonical form.

    <directory>/<data set>/<task>/<role>.<agent>.<model>.<box>.<attempt>/0001-<digest>.json

The directory of a role is the conversation in its order. It belongs to one attempt, so that workers
do not meet, and an attempt that is recorded anew replaces what was there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal

from pytest_ageval.errors import ConfigError
from pytest_ageval.evidence.files import write_atomic
from pytest_ageval.evidence.layout import safe_name
from pytest_ageval.gateway.canonical import Canonical, Names, Normaliser, readable, today

FORMAT = "ageval.recording/1"

#: Headers that are kept. No credential is among them, and nothing that names a machine or an account.
REQUEST_HEADERS = ("content-type", "anthropic-version", "anthropic-beta", "openai-beta")
RESPONSE_HEADERS = ("content-type", "retry-after", "retry-after-ms", "x-should-retry")

#: How an answer ended: whole, the connection broke, or the agent went away first.
End = Literal["complete", "cut", "client_gone"]

#: Bytes of an answer that can be recorded.
MAX_RECORDED = 64 * 1024 * 1024

#: Lines of the difference that a message shows, and characters of a line.
DIFF_LINES = 40
DIFF_WIDTH = 240
#: Lines of a request beyond which its difference is looked for by line only.
DIFF_SIZE = 20_000

_FILE = re.compile(r"(\d{4,})-[0-9a-f]{16}\.json\Z")


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded answer. `status` None: the agent went away before there was one."""

    status: int | None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    end: End = "complete"

    def as_document(self, scrub: Callable[[str], str]) -> dict[str, Any]:
        """For the file: events, JSON or text, whichever can be read best."""
        found: dict[str, Any] = {"status": self.status, "headers": dict(self.headers), "end": self.end}
        try:
            text = scrub(self.body.decode("utf-8"))
        except UnicodeDecodeError:
            return {**found, "base64": base64.b64encode(self.body).decode("ascii")}
        if "event-stream" in self.headers.get("content-type", ""):
            return {**found, "events": text.split("\n\n")}
        try:
            loaded = json.loads(text)
        except (ValueError, RecursionError):
            return {**found, "text": text}
        return {**found, "json": loaded}

    @classmethod
    def from_document(cls, found: Mapping[str, Any]) -> Answer:
        """From a file's ``response``."""
        if "base64" in found:
            body = base64.b64decode(found["base64"])
        elif "events" in found:
            body = "\n\n".join(found["events"]).encode()
        elif "json" in found:
            body = json.dumps(found["json"], ensure_ascii=False).encode("utf-8", "surrogatepass")
        else:
            body = str(found.get("text", "")).encode()
        return cls(found["status"], dict(found["headers"]), body, found["end"])


def scope_name(dataset: str, task: str, parts: Iterable[str | None]) -> Path:
    """The directory of one role of one attempt, relative to the recording."""
    words = [word for word in parts if word]
    name = ".".join(safe_name(word) for word in words)
    if len(name) > 100:
        digest = hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]
        name = f"{name[:90]}-{digest}"
    return Path(safe_name(dataset), safe_name(task), name)


class Recorder:
    """Writes the calls of one role of one attempt. `begin` drops what an earlier run left there."""

    def __init__(self, root: Path, scope: Path, scrub: Callable[[str], str]) -> None:
        self.directory = root / scope
        self._scrub = scrub
        self._lock = threading.Lock()
        self._number = 0

    def begin(self) -> None:
        """Make the directory, empty. Blocks."""
        if self.directory.is_dir():
            ours = [path for path in self.directory.iterdir() if _FILE.match(path.name)]
            for path in ours:
                path.unlink(missing_ok=True)
        self.directory.mkdir(parents=True, exist_ok=True)

    def number(self) -> int:
        """The number of the next call: their order is that of the requests."""
        with self._lock:
            self._number += 1
            return self._number

    def write(self, number: int, request: Canonical, headers: Mapping[str, str], answer: Answer) -> Path:
        """Write one call. Blocks."""
        document = {
            "format": FORMAT,
            "recorded": today().isoformat(),
            "digest": request.digest,
            "request": {
                "method": request.method,
                "path": request.path,
                "headers": dict(headers),
                "body": request.body,
            },
            "response": answer.as_document(self._scrub),
        }
        path = self.directory / f"{number:04d}-{request.digest[:16]}.json"
        text = json.dumps(document, indent=1, ensure_ascii=False)
        write_atomic(path, text.encode("utf-8", "surrogatepass") + b"\n", sync=False)
        return path


class Recording:
    """A directory that was recorded, read once for a process. Raises ConfigError if it is not one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.by_digest: dict[str, list[Path]] = {}
        self.by_path: dict[tuple[str, str], list[Path]] = {}
        files = sorted(path for path in root.rglob("*.json") if _FILE.match(path.name))
        if not files:
            raise ConfigError("replay_invalid", f"--replay: {root} holds no recorded call", file=str(root))
        self.days = {date.fromisoformat(load(path)["recorded"]) for path in files}
        # A date in a task may be today's when it is replayed, or was when it was recorded.
        self._normaliser = Normaliser(Names(), self.days)
        for path in files:
            request = self._request(path)
            self.by_digest.setdefault(request.digest, []).append(path)
            self.by_path.setdefault((request.method, request.path), []).append(path)

    def _request(self, path: Path) -> Canonical:
        found = load(path)["request"]
        return Canonical(found["method"], found["path"], self._normaliser.body(found["body"]))

    def answers(self, digest: str, scope: Path) -> list[Path]:
        """The files that answer a request: those of the same scope, or else all others."""
        found = self.by_digest.get(digest, [])
        own = [path for path in found if path.parent == self.root / scope]
        return own or found

    def nearest(self, request: Canonical, scope: Path) -> tuple[Path, list[str]] | None:
        """The recorded request that has most lines in common, and its lines."""
        wanted = Counter(readable(request.body))
        best: tuple[tuple[float, bool], Path, list[str]] | None = None
        for path in self.by_path.get((request.method, request.path), ()):
            lines = readable(self._request(path).body)
            common = sum((wanted & Counter(lines)).values())
            score = 2 * common / max(1, len(lines) + sum(wanted.values()))
            rank = (score, path.parent == self.root / scope)
            if best is None or rank > best[0]:
                best = (rank, path, lines)
        return None if best is None else (best[1], best[2])


class Player:
    """Answers the calls of one role of one attempt from a recording, the same request in order.

    `private`: no text of a request may be shown, as with a judge, which is sent gold.
    """

    def __init__(self, recording: Recording, scope: Path, *, private: bool = False) -> None:
        self.private = private
        self.recording = recording
        self.scope = scope
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def answer(self, request: Canonical) -> Answer | None:
        """The recorded answer; None if there is none. After the last one it is given again. Blocks."""
        files = self.recording.answers(request.digest, self.scope)
        if not files:
            return None
        with self._lock:
            number = min(self._asked[request.digest], len(files) - 1)
            self._asked[request.digest] += 1
        return Answer.from_document(load(files[number])["response"])

    def difference(self, request: Canonical) -> str:
        """How `request` differs from the nearest one that was recorded. Blocks."""
        found = self.recording.nearest(request, self.scope)
        what = f"{request.method} {request.path}"
        if found is None:
            return f"{what} is not in the recording {self.recording.root}, nor any other call of that path"
        path, lines = found
        shown = path.relative_to(self.recording.root)
        if self.private:
            return f"{what} is not in the recording {self.recording.root}; the nearest one is {shown}"
        return (
            f"{what} is not in the recording {self.recording.root}; "
            f"the difference to the nearest one, {shown}:\n"
            + "\n".join(difference(lines, readable(request.body)))
        )


def difference(recorded: list[str], asked: list[str]) -> list[str]:
    """The lines that differ, each cut to where the difference is."""
    import difflib

    if max(len(recorded), len(asked)) > DIFF_SIZE:
        common = Counter(recorded) & Counter(asked)
        rows = [f"-{line}" for line in recorded if line not in common]
        rows += [f"+{line}" for line in asked if line not in common]
    else:
        rows = list(difflib.unified_diff(recorded, asked, "recorded", "asked", lineterm="", n=1))
    cut = [_cut(rows, index) for index in range(min(len(rows), DIFF_LINES))]
    more = len(rows) - len(cut)
    return [*cut, f"[... {more} more lines]"] if more > 0 else cut


def _cut(rows: list[str], index: int) -> str:
    """A long line around the place where it differs from its counterpart."""
    row = rows[index]
    if len(row) <= DIFF_WIDTH:
        return row
    other = None
    if row[0] == "-":
        other = next((line for line in rows[index + 1 : index + 200] if line[:1] == "+"), None)
    elif row[0] == "+":
        other = next((line for line in reversed(rows[max(0, index - 200) : index]) if line[:1] == "-"), None)
    at = 1
    if other is not None:
        limit = min(len(row), len(other))
        at = next((place for place in range(1, limit) if row[place] != other[place]), limit)
    start = max(1, min(at - DIFF_WIDTH // 3, len(row) - DIFF_WIDTH))
    head = "..." if start > 1 else ""
    tail = "..." if start + DIFF_WIDTH < len(row) else ""
    return f"{row[0]}{head}{row[start : start + DIFF_WIDTH]}{tail}"


def load(path: Path) -> dict[str, Any]:
    """One file of a recording. Raises ConfigError ``replay_invalid``."""
    try:
        found = json.loads(path.read_bytes())
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']!r}, not {FORMAT!r}")
        for name in ("method", "path", "body"):
            found["request"][name]
        for name in ("status", "headers", "end"):
            found["response"][name]
        date.fromisoformat(found["recorded"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            "replay_invalid",
            f"{path} is not a recorded call: {type(error).__name__}: {error}",
            file=str(path),
        ) from None
    loaded: dict[str, Any] = found
    return loaded


_recordings: dict[Path, Recording] = {}
_recordings_lock = threading.Lock()


def recording(root: Path) -> Recording:
    """The recording at `root`, read once for a process. Blocks."""
    with _recordings_lock:
        if root not in _recordings:
            _recordings[root] = Recording(root)
        return _recordings[root]
