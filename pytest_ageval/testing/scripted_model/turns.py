"""What a scripted model does when asked: answers, which go on with the script, and faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Why an answer ends: it is whole, it hit the token limit, or the provider's filter refused it.
Stop = Literal["end", "limit", "refused"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """The usage that an answer reports, in each wire's own convention.

    `input` counts every input token; of these `cached` were read from a cache and `cache_write`
    written to one. `output` counts reasoning tokens too; `reasoning` says how many. `cost` is USD,
    which only Chat Completions reports (as ``usage.cost``). A figure that is None is left out; with
    `reported=False` no usage is sent at all.
    """

    input: int | None = 1000
    cached: int | None = 200
    cache_write: int | None = 0
    output: int | None = 50
    reasoning: int | None = 10
    cost: float | None = None
    reported: bool = True


#: The model reports no usage.
NO_USAGE = Tokens(reported=False)


@dataclass(frozen=True, slots=True)
class Text:
    """The model answers with text. ``Text("")`` is an empty answer.

    The text is streamed in `pieces` deltas, `pause` seconds before each but the first. `thought`
    goes out first, as reasoning. A lone surrogate is allowed: JSON can carry it as an escape. With
    `unknown` the answer also carries fields, and a stream events, that no client knows.
    """

    text: str
    thought: str = ""
    stop: Stop = "end"
    pieces: int = 2
    pause: float = 0.0
    tokens: Tokens | None = None
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model calls the tool of this very name, whether or not the request offers it.

    `arguments` is an object, or a string that is sent as it is (broken JSON, a freeform input).
    """

    name: str
    arguments: Mapping[str, Any] | str
    text: str = ""
    thought: str = ""
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Shell:
    """The model runs a command with the shell tool on offer, whatever its name and schema.

    `workdir` is given only to a tool that takes a working directory.
    """

    command: str
    workdir: str | None = None
    text: str = ""
    thought: str = ""
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """The model writes a file with the tool on offer for that, or with the shell tool.

    A relative `path` is taken from the working directory that the agent names in its prompt. A
    patch tool ends the file with a newline even if `content` does not.
    """

    path: str
    content: str
    text: str = ""
    thought: str = ""
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Calls:
    """The model makes several calls in one answer. Only this `text` and `thought` go out."""

    calls: Sequence[ToolCall | Shell | Write]
    text: str = ""
    thought: str = ""
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class HttpError:
    """The provider answers with an HTTP error, `times` times (None: always).

    `retry_after` becomes the header (seconds, or a date as text). `code` is the machine's word in
    the body, such as ``insufficient_quota``; by default one that fits the status.
    """

    status: int
    message: str = "scripted error"
    retry_after: float | str | None = None
    code: str | None = None
    times: int | None = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection ends within the answer, after the text `after`.

    `clean` ends the HTTP message properly, so that only the end marker of the stream is missing.
    """

    after: str = ""
    clean: bool = False
    times: int | None = 1


@dataclass(frozen=True, slots=True)
class Malformed:
    """After the text `after` comes a piece of data that is not JSON."""

    after: str = ""
    times: int | None = 1


@dataclass(frozen=True, slots=True)
class StreamError:
    """After the text `after` the stream carries an error, as under a provider's overload."""

    message: str = "scripted error"
    code: str = "overloaded_error"
    after: str = ""
    times: int | None = 1


@dataclass(frozen=True, slots=True)
class Garbage:
    """Status 200 with a page that no model wrote."""

    body: str = "<html><body>Sign in to the network</body></html>"
    content_type: str = "text/html"
    times: int | None = 1


@dataclass(frozen=True, slots=True)
class Hang:
    """Nothing more comes for `seconds`, then the connection ends.

    With `after` the answer begins and stops after that text; without it not even a status line
    is sent.
    """

    seconds: float = 600.0
    after: str | None = None
    times: int | None = 1


@dataclass(frozen=True, slots=True)
class Delay:
    """A pause of `seconds` before the turn that follows, each time that turn is given."""

    seconds: float


Call = ToolCall | Shell | Write
Answer = Text | ToolCall | Shell | Write | Calls
Fault = HttpError | Cut | Malformed | StreamError | Garbage | Hang
Turn = Answer | Fault | Delay


def needs_tools(turn: Answer | None) -> bool:
    """The turn can only be given to a request that offers tools."""
    return isinstance(turn, ToolCall | Shell | Write | Calls)
