"""What the model is told."""

from __future__ import annotations

from typing import Literal

Parser = Literal["json", "xml"]

_JSON = """\
{
  "analysis": "what the terminal shows and what it means for the task",
  "plan": "what you will type next and what you expect from it",
  "commands": [
    {"keystrokes": "ls -la\\n", "duration": 0.2},
    {"keystrokes": "make\\n", "duration": 20}
  ],
  "task_complete": false
}"""

_XML = """\
<response>
<analysis>what the terminal shows and what it means for the task</analysis>
<plan>what you will type next and what you expect from it</plan>
<commands>
<keystrokes duration="0.2">ls -la
</keystrokes>
<keystrokes duration="20">make
</keystrokes>
</commands>
<task_complete>false</task_complete>
</response>"""

_FIRST = """\
You work on a task by typing into a Linux terminal. You see what it shows; you have no other tool.

Answer with one {form} and nothing else:

{example}

- analysis, plan and commands are required. commands may be empty, to wait and look again.
- keystrokes are typed exactly as they stand. End a command line with a line end, or it is not run. A text
  that is nothing but the name of a key in tmux's spelling presses that key: C-c, C-d, Escape, Up.
- duration is how long to wait before the next keystrokes, or before you see the terminal: {default:g} s if
  it is left out, {longest:g} s at most. What runs longer goes on running; wait for it with empty
  keystrokes. Prefer short waits.
- task_complete: true when the task is done. You will be asked once more before it counts.

The task:

{task}

{screen}"""


def form(parser: Parser) -> str:
    """What an answer is called."""
    return "JSON object" if parser == "json" else "XML element response"


def first(task: str, screen: str, parser: Parser, *, default: float, longest: float) -> str:
    """The first message: how to answer, the task, the terminal."""
    example = _JSON if parser == "json" else _XML
    return _FIRST.format(
        form=form(parser), example=example, task=task, screen=screen, default=default, longest=longest
    )


def further(task: str, screen: str) -> str:
    """A further prompt in the same session."""
    return f"The next task, in the same terminal:\n\n{task}\n\n{screen}"


def malformed(error: str, parser: Parser) -> str:
    """An answer could not be read."""
    return (
        f"Nothing was typed: your answer could not be read ({error}). Answer again with one {form(parser)} "
        "of the form given above."
    )


def cut_off(parser: Parser) -> str:
    """An answer was longer than the model may answer."""
    return (
        "Nothing was typed: your answer was cut off because it reached the longest length allowed. Answer "
        f"again with one shorter {form(parser)}; write long files in several steps."
    )


def confirm(screen: str) -> str:
    """The model says it is done, for the first time."""
    return (
        f"{screen}\n\nYou say that the task is complete. It will be graded as it is now, and you cannot go "
        "on after that. If you are sure, answer with task_complete: true once more; else go on."
    )


def with_warnings(screen: str, warnings: list[str]) -> str:
    """The terminal, and what was not quite right with the last answer."""
    if not warnings:
        return screen
    return "About your last answer:\n" + "\n".join(f"- {row}" for row in warnings) + f"\n\n{screen}"


SUMMARY = """\
The conversation is getting too long and will go on without what was said so far. Do not type anything now.
Write down, in plain text, all that is needed to finish the task without it: what has been done and found
out, which files and commands matter, what failed and why, the state of the terminal, and what is left."""


def carried_on(opening: str, summary: str, screen: str) -> str:
    """The first message after a summary."""
    return f"{opening}\n\nYou have worked on this before. Your notes:\n\n{summary}\n\n{screen}"


def shown(text: str, *, new: bool, restarted: bool, limit: int) -> str:
    """What the terminal shows, cut in the middle to `limit` bytes."""
    head = "New output:" if new else "The screen:"
    if restarted:
        head = "The shell had ended; a new one was started. The screen:"
    return f"{head}\n{clipped(text, limit)}"


def clipped(text: str, limit: int) -> str:
    """`text` of at most `limit` bytes, without its middle."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return text
    half = limit // 2
    start, end = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{start}\n[... {len(data) - 2 * half} bytes left out ...]\n{end}"
