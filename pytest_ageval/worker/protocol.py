"""What the parent and a worker say to each other, and in which form.

A frame is four bytes of length (big endian) and one JSON object in UTF-8. Lone surrogates, which
real model output has, survive the way through (``surrogatepass``), and so do NaN and the infinities,
which Python's `json` writes and reads as ``NaN`` and ``Infinity``: the parent sees what an evaluator
really returned and can refuse it. A frame is at most `FRAME_LIMIT` bytes in either direction.

The parent opens with ``launch``. The worker sends ``call`` (answered by a ``reply`` of the same
``id``, in any order), ``note`` (not answered), and at its end exactly one ``result``.

The ``*Request`` and ``*Reply`` types below are the contract of the parent's `handler`: it is called
with the name of the operation and the request, and returns the reply. This module imports nothing
outside the standard library, as everything that a worker loads.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Bytes of one frame's JSON, in either direction.
FRAME_LIMIT = 64 * 1024 * 1024

#: Bytes of the length in front of a frame.
HEADER = 4


class FrameTooLarge(ValueError):
    """The frame is larger than `FRAME_LIMIT`; `size` is its number of bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(f"frame_too_large: {size} bytes, at most {FRAME_LIMIT}")


def encode(frame: Mapping[str, Any]) -> bytes:
    """The bytes of one frame. Raises `FrameTooLarge`, and TypeError or ValueError for what is not JSON."""
    text = json.dumps(frame, ensure_ascii=False, separators=(",", ":"))
    body = text.encode("utf-8", "surrogatepass")
    if len(body) > FRAME_LIMIT:
        raise FrameTooLarge(len(body))
    return len(body).to_bytes(HEADER, "big") + body


def decode(body: bytes | bytearray) -> dict[str, Any]:
    """The object of one frame's body. Raises ValueError when it is not one JSON object."""
    try:
        found = json.loads(body.decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"a frame must be an object, not {type(found).__name__}")
    return found


# -- operations ----------------------------------------------------------------------------------

#: Operations of a worker. ``publish`` is a note: its reply is not sent.
Op = Literal["open", "invoke", "cancel", "close", "record_observation", "scoring_exec", "publish"]


class OpenRequest(TypedDict):
    """``open``: sent once, before the first invoke of a session. The worker chose `session_id`.

    It is ``sess_<profile>_<actor|default>_<environment|main>_<n>``; `n` counts the calls of
    ``agent.session(...)`` in the order of the task's code, so that it is the same on a resume.
    """

    session_id: str
    profile_id: str
    actor_id: str | None
    environment: str | None


class OpenReply(TypedDict):
    """Whether the session may be used. `error` is a token such as ``unknown_profile``."""

    ok: bool
    error: NotRequired[str | None]
    detail: NotRequired[str | None]


class InvokeRequest(TypedDict):
    """``invoke``: one turn. `request_id` is ``req_<session>_turn_<n>`` unless the task chose one."""

    session_id: str
    request_id: str
    prompt: str
    tools: list[dict[str, Any]] | None
    messages: list[dict[str, Any]] | None
    turn: int


class ToolCallReply(TypedDict):
    """A call that the task itself must make. `arguments` is the parsed object."""

    id: str
    name: str
    arguments: dict[str, Any]


class InvokeReply(TypedDict):
    """What one turn came to. `text` is whole, never cut.

    `structured` is the JSON that the text consists of, or None. `error` is a token with detail
    (``agent_invocation_limit``, ``HTTPError:503``) when `ok` is False. Keys that are not named here
    reach the task's code unchanged.
    """

    ok: bool
    text: str
    structured: Any
    error: str | None
    tool_calls: list[ToolCallReply]
    invocation_id: str | None
    turn: NotRequired[int]
    usage: NotRequired[dict[str, Any] | None]
    status: NotRequired[str | None]
    stop_reason: NotRequired[str | None]
    model: NotRequired[str | None]
    evidence_relative: NotRequired[str | None]


class CancelRequest(TypedDict):
    """``cancel``: the task gave up waiting for this turn. Reply when the turn has ended."""

    session_id: str
    request_id: str


class CloseRequest(TypedDict):
    """``close``: the session is not used again. Sent only for a session that was opened."""

    session_id: str


class ObservationRequest(TypedDict):
    """``record_observation``: what the task's own tool returned for a call of the model."""

    session_id: str
    tool_call_id: str
    content: str
    error: bool
    invocation_id: str | None
    function_name: str | None
    raw_output: Any


class ScoringRequest(TypedDict):
    """``scoring_exec``: run `argv` in the scoring box `name`.

    `env` maps a variable to the *name* of the secret to put there, never to a value.
    """

    name: str
    argv: list[str]
    timeout_sec: float | None
    env: dict[str, str]


class ScoringReply(TypedDict):
    """What the command did. With `error` set the command did not run and the SDK raises it."""

    exit_code: int
    stdout: str
    stderr: str
    truncated: bool
    error: NotRequired[str | None]


class PublishNote(TypedDict):
    """``publish``: the run declared an artifact. `path` is absolute.

    A ``json`` or ``file`` artifact already lies in the artifact directory; a ``tree`` is still where
    the run made it and is copied at harvest.
    """

    id: str
    kind: Literal["json", "file", "tree"]
    path: str


class Reply(TypedDict):
    """The answer to operations that only succeed or fail."""

    ok: bool
    error: NotRequired[str | None]


# -- the other frames ----------------------------------------------------------------------------


class ErrorInfo(TypedDict):
    """Why a script came to nothing, in its author's terms.

    `title` is the exception's class name or a `ScriptError`'s title; `traceback` has only the frames
    of the task's own files, with source lines; `file` and `line` are the innermost of them.
    """

    title: str
    message: str
    traceback: str | None
    file: str | None
    line: int | None


class Launch(TypedDict):
    """The parent's first frame: all that the worker needs to run one script.

    `view` is what `namespace.enter` takes; None: the script sees all that the user does.
    """

    kind: Literal["run", "evaluate"]
    script: str
    function: str
    task_root: str
    dataset_root: str | None
    workspace: str
    artifacts: str
    env: dict[str, str]
    params: dict[str, Any]
    attempt_id: str
    trial_id: str
    run_id: str
    deadline_monotonic: float | None
    inputs: dict[str, Any]
    view: list[Sequence[str]] | None
