"""The executor ``anthropic-http``: a model behind Anthropic's Messages API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from ageval_executors._http import join_url
from ageval_executors._messages import MessagesAnswer, messages_body
from ageval_executors._model import ModelExecutor

if TYPE_CHECKING:
    from ageval_executors._answer import Answer
    from ageval_executors._conversation import Entry


class AnthropicOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Options of ``anthropic-http``.

    `max_tokens` is the ceiling of one answer, which this API requires; ``model.extra.max_tokens``
    overrides it. `anthropic_version` is the API's version header. `stream` can be turned off.
    """

    max_tokens: Annotated[int, msgspec.Meta(ge=1)] = 4096
    anthropic_version: str = "2023-06-01"
    stream: bool = True


class AnthropicExecutor(ModelExecutor):
    """One POST to ``/v1/messages`` for each invoke.

    Tools and messages come in OpenAI's chat style and are translated. The base URL may end with the
    version (``/v1``) or not. The reasoning effort is sent as ``output_config.effort``.
    """

    kind = "anthropic-http"
    supported_apis = frozenset({"chat"})
    extra_allowlist = frozenset({"max_tokens", "temperature", "thinking", "top_k", "top_p"})
    Options = AnthropicOptions
    default_base_url = "https://api.anthropic.com"
    default_model = "claude-sonnet-4-6"
    default_api_key_name = "ANTHROPIC_API_KEY"
    default_base_url_name = "AGEVAL_ANTHROPIC_BASE_URL"

    def endpoint(self) -> str:
        """See `ModelExecutor`."""
        versioned = re.search(r"/v\d+/?$", self.base_url.split("?")[0])
        return join_url(self.base_url, "/messages" if versioned else "/v1/messages")

    def headers(self, key: str | None) -> dict[str, str]:
        """See `ModelExecutor`."""
        found = {
            "content-type": "application/json",
            "anthropic-version": self.options.anthropic_version,
        }
        return {**found, "x-api-key": key} if key else found

    def body(self, entries: Sequence[Entry], tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
        """See `ModelExecutor`."""
        body = {
            "model": self.model_id,
            "max_tokens": self.options.max_tokens,
            **messages_body(entries, tools),
        }
        if self.options.stream:
            body["stream"] = True
        if self.session.model.reasoning_effort:
            body["output_config"] = {"effort": self.session.model.reasoning_effort}
        return {**body, **self.session.model.extra}

    def answer(self) -> Answer:
        """See `ModelExecutor`."""
        return MessagesAnswer()
