"""The executor ``openai-http``: a model behind OpenAI's API or one that is compatible with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ageval_executors._chat import ChatAnswer, chat_body
from ageval_executors._http import join_url
from ageval_executors._model import ModelExecutor
from ageval_executors._responses import ResponsesAnswer, responses_body

if TYPE_CHECKING:
    from ageval_executors._answer import Answer
    from ageval_executors._conversation import Entry


class OpenAIOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Options of ``openai-http``.

    `stream` can be turned off for a server that refuses to stream. ``watchdog`` has no effect then,
    since nothing arrives before the whole answer does.
    """

    stream: bool = True


class OpenAIExecutor(ModelExecutor):
    """One POST for each invoke: ``/chat/completions``, or ``/responses`` when ``model.api`` says so.

    Nothing is sent that nobody asked for: a sampling parameter only if ``model.extra`` has it, the
    reasoning effort only if it is configured.
    """

    kind = "openai-http"
    supported_apis = frozenset({"chat", "responses"})
    extra_allowlist = frozenset(
        {
            "max_completion_tokens",
            "max_output_tokens",
            "max_tokens",
            "provider",
            "seed",
            "temperature",
            "top_p",
        }
    )
    Options = OpenAIOptions
    default_base_url = "https://api.openai.com/v1"
    default_model = "gpt-4.1-mini"
    default_api_key_name = "OPENAI_API_KEY"
    default_base_url_name = "AGEVAL_OPENAI_BASE_URL"

    @property
    def _responses(self) -> bool:
        return self.session.model.api == "responses"

    def endpoint(self) -> str:
        """See `ModelExecutor`."""
        return join_url(self.base_url, "/responses" if self._responses else "/chat/completions")

    def headers(self, key: str | None) -> dict[str, str]:
        """See `ModelExecutor`."""
        found = {"content-type": "application/json"}
        return {**found, "authorization": f"Bearer {key}"} if key else found

    def body(self, entries: Sequence[Entry], tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
        """See `ModelExecutor`."""
        build = responses_body if self._responses else chat_body
        body = {"model": self.model_id, **build(entries, tools, stream=self.options.stream)}
        effort = self.session.model.reasoning_effort
        if effort and self._responses:
            body["reasoning"] = {"effort": effort}
        elif effort:
            body["reasoning_effort"] = effort
        return {**body, **self.session.model.extra}

    def answer(self) -> Answer:
        """See `ModelExecutor`."""
        return ResponsesAnswer() if self._responses else ChatAnswer()
