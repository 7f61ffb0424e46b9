"""An exception of a task's script, told in its author's terms: own files, own lines."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING

from pytest_ageval.sdk.errors import ScriptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_ageval.worker.protocol import ErrorInfo

#: Characters of a message and of a traceback that are kept (half from the head, half from the tail).
MESSAGE_LIMIT = 16 * 1024
TRACEBACK_LIMIT = 64 * 1024


def bounded(text: str, limit: int) -> str:
    """`text`, with its middle replaced by a note when it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def describe_fault(error: BaseException, own: Sequence[str]) -> ErrorInfo:
    """The fault as the parent keeps it. `own` are the task's directories and files."""
    told = traceback.TracebackException.from_exception(error)
    _keep_own_frames(told, own)
    file, line = _place(error, told, own)
    return {
        "title": error.title if isinstance(error, ScriptError) else type(error).__name__,
        "message": bounded(_message(error), MESSAGE_LIMIT),
        "traceback": bounded("".join(told.format()), TRACEBACK_LIMIT),
        "file": file,
        "line": line,
    }


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"(its text cannot be had: {type(broken).__name__})"


def _is_own(filename: str, own: Sequence[str]) -> bool:
    if "/site-packages/" in filename or "/dist-packages/" in filename:
        return False
    return any(filename == path or filename.startswith(path + os.sep) for path in own)


def _keep_own_frames(told: traceback.TracebackException, own: Sequence[str]) -> None:
    """Take the frames of libraries and of the worker out, in the whole chain of causes."""
    seen: set[int] = set()
    queue = [told]
    while queue:
        one = queue.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.stack = traceback.StackSummary.from_list(
            [frame for frame in one.stack if _is_own(frame.filename, own)]
        )
        queue += [linked for linked in (one.__cause__, one.__context__) if linked is not None]
        queue += one.exceptions or []


def _place(
    error: BaseException, told: traceback.TracebackException, own: Sequence[str]
) -> tuple[str | None, int | None]:
    if isinstance(error, SyntaxError) and error.filename and _is_own(error.filename, own):
        return error.filename, error.lineno
    if told.stack:
        return told.stack[-1].filename, told.stack[-1].lineno
    return None, None
