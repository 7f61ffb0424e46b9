"""`ScriptedModel`: a model that says what a script tells it to."""

from __future__ import annotations

import hashlib
import itertools
import threading
from typing import TYPE_CHECKING, Self

from pytest_ageval.testing.scripted_model.script import Choice, Chooser, Script, When
from pytest_ageval.testing.scripted_model.server import ModelServer
from pytest_ageval.testing.scripted_model.tools import ScriptError, resolve
from pytest_ageval.testing.scripted_model.turns import (
    Answer,
    Call,
    Calls,
    Fault,
    HttpError,
    Shell,
    Text,
    Tokens,
    ToolCall,
    Turn,
    Write,
)
from pytest_ageval.testing.scripted_model.wires import Reply

if TYPE_CHECKING:
    import types
    from collections.abc import Sequence

    from pytest_ageval.testing.scripted_model.request import Request

#: What a conversation gets when it goes on after the end of the script.
AFTER_END = Text("The script has ended.", pieces=1)


class ScriptedModel:
    """A loopback server that stands in for a provider, so that a real agent runs without spend.

    It speaks OpenAI Responses, OpenAI Chat Completions, Anthropic Messages and Gemini, streaming or
    not, on one port, and is used as a context manager::

        with ScriptedModel([Shell("echo hi > out.txt"), Text("done")]) as model:
            ...  # point the agent at model.base_url or model.anthropic_base_url
        assert "hi" in model.requests[-1].results[-1]

    **Which turn a request gets.** A request carries its whole conversation, so the number of the
    model's answers in it says how far the script is. Parallel, repeated and resumed sessions
    therefore each run the script from their own place. Faults do not go on with the script: the
    request that is repeated after ``HttpError(503)`` gets what comes next. A `When` holds turns for
    the prompts that match it; they are counted from that prompt. `by` decides request by request.

    A request without tools, where the script calls one, gets a line of text and uses up nothing:
    agents ask for titles and summaries that way. A conversation that goes on after the script's end
    gets `after_end`.

    When the script cannot be carried out (no tool on offer fits `Shell`; `by` raised), the agent
    gets an HTTP error and leaving the context manager raises `ScriptError`.
    """

    def __init__(
        self,
        turns: Sequence[Turn | When] = (),
        *,
        by: Chooser | None = None,
        tokens: Tokens | None = None,
        after_end: Answer | Fault = AFTER_END,
        models: Sequence[str] = ("scripted-model",),
        host: str = "127.0.0.1",
    ) -> None:
        self.tokens = tokens or Tokens()
        self.models = tuple(models)
        self.host = host
        self.problems: list[str] = []
        self._by = by
        self._script = Script(turns, after_end)
        self._requests: list[Request] = []
        self._numbers = itertools.count(1)
        self._arrived = threading.Condition()
        self._server: ModelServer | None = None

    # -- use -------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Listen. Use the context manager where you can; otherwise call `stop`."""
        if self._server is None:
            self._server = ModelServer(self, self.host)
        return self

    def stop(self) -> None:
        """End the server and every open connection. Idempotent."""
        if self._server is not None:
            self._server.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.stop()
        if error is None:
            self.check()

    def check(self) -> None:
        """Raise `ScriptError` if the script could not be carried out."""
        if self.problems:
            raise ScriptError("; ".join(self.problems))

    @property
    def root_url(self) -> str:
        """``http://127.0.0.1:PORT``. Raises RuntimeError before `start`."""
        if self._server is None:
            raise RuntimeError("the scripted model has not been started: use it in a with statement")
        return f"http://{self.host}:{self._server.port}"

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI's wires, as ``OPENAI_BASE_URL`` has it (with ``/v1``)."""
        return f"{self.root_url}/v1"

    @property
    def anthropic_base_url(self) -> str:
        """The base URL for Anthropic's wire, as ``ANTHROPIC_BASE_URL`` has it (without ``/v1``)."""
        return self.root_url

    @property
    def gemini_base_url(self) -> str:
        """The base URL for Gemini's wire, as ``GOOGLE_GEMINI_BASE_URL`` has it (without ``/v1beta``)."""
        return self.root_url

    def env(self, key: str = "scripted-key") -> dict[str, str]:
        """The variables that most agents and SDKs read: base URLs, and a key that opens nothing."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": self.anthropic_base_url,
            "ANTHROPIC_API_KEY": key,
            "GOOGLE_GEMINI_BASE_URL": self.gemini_base_url,
            "GEMINI_API_KEY": key,
        }

    @property
    def requests(self) -> list[Request]:
        """The requests for an answer so far, in the order of arrival."""
        with self._arrived:
            return list(self._requests)

    def wait_for(self, count: int, timeout: float = 10.0) -> list[Request]:
        """Wait until `count` requests have arrived. Raises TimeoutError after `timeout` seconds."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self._requests) >= count, timeout):
                raise TimeoutError(f"{len(self._requests)} of {count} requests after {timeout:g} seconds")
            return list(self._requests)

    # -- what the server asks --------------------------------------------------------------------

    def number(self) -> int:
        """The number of the next request, from 1."""
        return next(self._numbers)

    def choose(self, request: Request) -> Choice:
        """Record `request` and choose its turn."""
        choice = self._choose(request)
        request.turn = choice.turn if choice.scripted else None
        with self._arrived:
            self._requests.append(request)
            self._arrived.notify_all()
        return choice

    def _choose(self, request: Request) -> Choice:
        if self._by is not None:
            try:
                found = self._by(request)
            except Exception as error:  # the script's own code: told to the client and by check()
                return self._problem(f"by() failed at request {request.number}: {error!r}")
            if found is not None:
                return found if isinstance(found, Choice) else Choice(found)
        return self._script.choose(request)

    def _problem(self, text: str) -> Choice:
        self.problems.append(text)
        return Choice(HttpError(400, f"script error: {text}", code="script_error"), scripted=False)

    def reply(self, choice: Choice, request: Request) -> Reply | HttpError:
        """The answer of `choice` with its tools chosen; an HTTP error if none fits."""
        turn = choice.turn
        tokens = getattr(turn, "tokens", None) or self.tokens
        if isinstance(turn, Text):
            return Reply(turn.text, turn.thought, (), turn.stop, tokens)
        calls: Sequence[Call] = ()
        if isinstance(turn, Calls):
            calls = turn.calls
        elif isinstance(turn, ToolCall | Shell | Write):
            calls = (turn,)
        prefix = "toolu" if request.api == "anthropic" else "call"
        # The id tells the step, so that answers can be counted from the calls in a conversation.
        mark = hashlib.sha256(repr(request.conversation).encode("utf-8", "replace")).hexdigest()[:8]
        try:
            found = [
                resolve(call, request, f"{prefix}_s{request.step}n{index}_{mark}")
                for index, call in enumerate(calls)
            ]
        except ScriptError as error:
            turn = self._problem(f"request {request.number}: {error}").turn
            assert isinstance(turn, HttpError)
            return turn
        text, thought = getattr(turn, "text", ""), getattr(turn, "thought", "")
        return Reply(text, thought, found, "end", tokens)
