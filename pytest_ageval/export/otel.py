"""OpenTelemetry spans after the semantic conventions for generative AI: one trace for each attempt.

``invoke_workflow`` is the attempt, ``invoke_agent`` an invoke, ``chat`` a model call, ``execute_tool`` a
call of a tool. Ids are made from the attempt's, so that a second export names the same spans.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from pytest_ageval._version import __version__
from pytest_ageval.errors import ConfigError
from pytest_ageval.export.source import nanoseconds

try:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
except ImportError as error:
    raise ConfigError(
        "missing_package",
        f"spans need OpenTelemetry ({error.name} is not there)",
        hint="pip install 'pytest-ageval[otel]'",
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import IO

    from opentelemetry.sdk.trace import ReadableSpan

    from pytest_ageval.export.source import Invocation, Recorded

#: Executors that call one provider; of the others an attempt does not know whom they call.
PROVIDERS = {"openai-http": "openai", "anthropic-http": "anthropic"}

_USAGE = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
    "cost_usd": "ageval.usage.cost_usd",
    "cost_source": "ageval.usage.cost_source",
    "price_table": "ageval.usage.price_table",
    "unavailable": "ageval.usage.unavailable",
    "cost_unavailable": "ageval.usage.cost_unavailable",
}


class _Ids(IdGenerator):
    """The ids of one attempt's trace."""

    def __init__(self, attempt_id: str) -> None:
        self._attempt = attempt_id
        self._numbers = itertools.count()

    def generate_trace_id(self) -> int:
        return self._hash("", 16)

    def generate_span_id(self) -> int:
        return self._hash(f":{next(self._numbers)}", 8)

    def _hash(self, more: str, size: int) -> int:
        found = hashlib.sha256(f"{self._attempt}{more}".encode()).digest()[:size]
        return int.from_bytes(found, "big") or 1


def spans(attempt: Recorded, *, content: bool = False) -> Sequence[ReadableSpan]:
    """The spans of an attempt, the outermost first. With `content` they hold what was said and done."""
    memory = InMemorySpanExporter()
    resource = Resource.create({"service.name": "pytest-ageval", "service.version": __version__})
    provider = TracerProvider(
        sampler=ALWAYS_ON,
        resource=resource,
        id_generator=_Ids(attempt.attempt_id),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(SimpleSpanProcessor(memory))
    _Trace(attempt, provider.get_tracer("pytest_ageval.export", __version__), content).write()
    found = memory.get_finished_spans()
    provider.shutdown()
    if not found:
        raise ConfigError("export_failed", "OpenTelemetry made no spans; is OTEL_SDK_DISABLED set?")
    return sorted(found, key=lambda span: (span.parent is not None, span.start_time or 0))


class _Trace:
    def __init__(self, attempt: Recorded, tracer: Tracer, content: bool) -> None:
        self.attempt = attempt
        self.tracer = tracer
        self.content = content

    def write(self) -> None:
        attempt = self.attempt
        stamps = [nanoseconds(attempt.timing.get("started_at"))]
        stamps += [nanoseconds(each.started_at) for each in attempt.invocations]
        begun = min((stamp for stamp in stamps if stamp is not None), default=0)
        ends = [nanoseconds(each.finished_at) or begun for each in attempt.invocations]
        ended = max([begun + int(float(attempt.timing.get("total_ms") or 0) * 1e6), *ends])
        task = str(attempt.lock.get("task_id"))
        root = self._span(f"invoke_workflow {task}", SpanKind.INTERNAL, begun, None, self._root(task))
        status, score = attempt.result.get("status"), attempt.result.get("score")
        if status in ("PASS", "FAIL"):
            verdict = {"gen_ai.evaluation.name": "verdict", "gen_ai.evaluation.score.label": status}
            verdict |= {} if score is None else {"gen_ai.evaluation.score.value": float(score)}
            root.add_event("gen_ai.evaluation.result", verdict, timestamp=ended)
        elif status == "ERROR":
            title = str((attempt.result.get("error") or {}).get("title"))
            root.set_attribute("error.type", title)
            root.set_status(Status(StatusCode.ERROR, title))
        for invocation in attempt.invocations:
            self._invoke(invocation, root, begun)
        root.end(ended)

    def _root(self, task: str) -> dict[str, Any]:
        result, lock = self.attempt.result, self.attempt.lock
        return {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": task,
            "ageval.attempt_id": self.attempt.attempt_id,
            "ageval.dataset": lock.get("dataset_id"),
            "ageval.task": task,
            "ageval.box": lock.get("environment"),
            "ageval.digest": lock.get("digest"),
            "ageval.status": result.get("status"),
            "ageval.score": result.get("score"),
            "ageval.limit": result.get("limit"),
        }

    def _invoke(self, invocation: Invocation, root: Span, begun: int) -> None:
        attempt, terminal = self.attempt, invocation.terminal
        start = nanoseconds(invocation.started_at) or begun
        end = max(nanoseconds(invocation.finished_at) or start, start)
        agent = attempt.agent_name(invocation.role)
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": self._provider(invocation),
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": invocation.session_id,
            "ageval.role": invocation.role,
            **self._model(invocation, terminal.get("stop_reason")),
            **_usage(invocation.usage),
        }
        if self.content:
            prompt = next((row for row in invocation.rows if row.get("role") == "user"), {})
            said = [row for row in invocation.rows if row.get("role") == "assistant" and "part" not in row]
            attributes |= {
                "gen_ai.input.messages": _messages("user", [prompt.get("content")]),
                "gen_ai.output.messages": _messages("assistant", [row.get("content") for row in said]),
            }
        span = self._span(f"invoke_agent {agent}", SpanKind.INTERNAL, start, root, attributes)
        for call in self._model_calls(invocation):
            self._chat(call, invocation, span, (start, end))
        results = {
            row.get("tool_call_id"): row for row in invocation.rows if row.get("type") == "observation"
        }
        for row in invocation.rows:
            if row.get("type") == "tool_call":
                self._tool(row, results.get(row.get("tool_call_id")) or {}, span, (start, end))
        if not terminal.get("ok"):
            _fail(span, terminal.get("error"))
        span.end(end)

    def _model(self, invocation: Invocation, reason: Any) -> dict[str, Any]:
        asked = (self.attempt.binding(invocation.role).get("model") or {}).get("id") or invocation.model
        return {
            "gen_ai.request.model": asked,
            "gen_ai.response.model": invocation.model,
            "gen_ai.response.finish_reasons": [str(reason)] if reason else None,
        }

    def _provider(self, invocation: Invocation) -> str:
        kind = str(invocation.metadata.get("executor_kind") or "unknown")
        return PROVIDERS.get(kind, kind)

    def _model_calls(self, invocation: Invocation) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """First and last line of each model call.

        A "model turn" with calls of tools inside is a turn of an agent whose single calls nobody saw.
        """
        request = invocation.metadata.get("request_id")
        begun: dict[str, dict[str, Any]] = {}
        tools: list[int] = []
        for row in self.attempt.activity:
            if (row.get("payload") or {}).get("invoke_request_id") != request:
                continue
            if row["kind"] == "tool_call" and row["status"] == "in_flight":
                tools.append(row["seq"])
            elif row["kind"] == "model_turn" and row["status"] == "in_flight":
                begun[row["request_id"]] = row
            elif row["kind"] == "model_turn":
                first = begun.pop(row["request_id"], None)
                if first is not None and not any(first["seq"] < seq < row["seq"] for seq in tools):
                    yield first, row

    def _chat(
        self,
        call: tuple[dict[str, Any], dict[str, Any]],
        invocation: Invocation,
        parent: Span,
        within: tuple[int, int],
    ) -> None:
        first, last = call
        told = last["payload"]
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": self._provider(invocation),
            "gen_ai.conversation.id": invocation.session_id,
            **self._model(invocation, told.get("stop_reason")),
            **_usage(told.get("usage") or {}),
        }
        if self.content:
            attributes["gen_ai.input.messages"] = json.dumps(
                [
                    {"role": str(row.get("role")), "parts": [_text(row.get("content"))]}
                    for row in first["payload"].get("delta_messages") or ()
                ]
            )
            attributes["gen_ai.output.messages"] = _messages("assistant", [told.get("assistant_text")])
        name = f"chat {invocation.model}" if invocation.model else "chat"
        start = nanoseconds(first.get("at")) or within[0]
        span = self._span(name, SpanKind.CLIENT, start, parent, attributes)
        if last["status"] == "aborted":
            _fail(span, told.get("reason"))
        span.end(max(nanoseconds(last.get("at")) or within[1], start))

    def _tool(
        self, call: Mapping[str, Any], result: Mapping[str, Any], parent: Span, within: tuple[int, int]
    ) -> None:
        name = str(call.get("function_name") or "tool")
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call.get("tool_call_id"),
            "gen_ai.tool.type": "function",
        }
        if self.content:
            attributes["gen_ai.tool.call.arguments"] = json.dumps(call.get("args") or {}, default=str)
            found = result.get("content") or result.get("raw_output")
            if found is not None:
                attributes["gen_ai.tool.call.result"] = json.dumps(found, default=str)
        start = nanoseconds(call.get("started_at")) or within[0]
        span = self._span(f"execute_tool {name}", SpanKind.INTERNAL, start, parent, attributes)
        if (result.get("status") or call.get("status")) == "failed":
            _fail(span, "tool_failed")
        ended = nanoseconds(result.get("ended_at")) or nanoseconds(call.get("ended_at")) or within[1]
        span.end(max(ended, start))

    def _span(
        self, name: str, kind: SpanKind, start: int, parent: Span | None, attributes: Mapping[str, Any]
    ) -> Span:
        context = None if parent is None else set_span_in_context(parent)
        known = {key: value for key, value in attributes.items() if value is not None}
        return self.tracer.start_span(name, context=context, kind=kind, start_time=start, attributes=known)


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {name: usage[key] for key, name in _USAGE.items() if usage.get(key) is not None}


def _fail(span: Span, error: Any) -> None:
    token = str(error or "unknown").partition(":")[0]
    span.set_attribute("error.type", token)
    span.set_status(Status(StatusCode.ERROR, str(error or "unknown")))


def _text(content: Any) -> dict[str, Any]:
    return {
        "type": "text",
        "content": content if isinstance(content, str) else json.dumps(content, default=str),
    }


def _messages(role: str, texts: Iterable[Any]) -> str:
    return json.dumps([{"role": role, "parts": [_text(text)]} for text in texts if text])


# -- where they go ---------------------------------------------------------------------------------


def write(found: Sequence[ReadableSpan], stream: IO[str]) -> None:
    """One line of OTLP JSON, as a collector's file receiver reads it."""
    from opentelemetry.exporter.otlp.json.file.trace_exporter import FileSpanExporter

    _export(FileSpanExporter(stream=stream), found, "the stream")


def send(found: Sequence[ReadableSpan], endpoint: str) -> None:
    """Send to an OTLP/HTTP endpoint. Without a path the usual one is taken. Raises ConfigError."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError("invalid_option", f"--endpoint takes an http or https URL, found {endpoint!r}")
    path = parts.path if parts.path.strip("/") else "/v1/traces"
    url = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
    _export(OTLPSpanExporter(endpoint=url), found, url)


def _export(exporter: SpanExporter, found: Sequence[ReadableSpan], where: str) -> None:
    try:
        done = exporter.export(found)
    finally:
        exporter.shutdown()
    if done is not SpanExportResult.SUCCESS:
        raise ConfigError("export_failed", f"{where} did not take the spans")
