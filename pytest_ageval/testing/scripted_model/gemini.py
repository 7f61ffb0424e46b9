"""The wire of Gemini: ``models/NAME:generateContent`` and ``:streamGenerateContent``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ageval.testing.scripted_model.wires import Json, Wire, frame, known, total

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_ageval.testing.scripted_model.tools import WireCall
    from pytest_ageval.testing.scripted_model.turns import Stop
    from pytest_ageval.testing.scripted_model.wires import Reply

_CODES = {
    "authentication_error": (401, "UNAUTHENTICATED"),
    "permission_error": (403, "PERMISSION_DENIED"),
    "not_found_error": (404, "NOT_FOUND"),
    "rate_limit_error": (429, "RESOURCE_EXHAUSTED"),
    "invalid_request_error": (400, "INVALID_ARGUMENT"),
}


class GeminiWire(Wire):
    """Gemini. A stream has no end marker: the last piece carries ``finishReason``."""

    _stops: Mapping[Stop, str] = {"end": "STOP", "limit": "MAX_TOKENS", "refused": "SAFETY"}

    def usage(self) -> Json:
        """See `Wire`. Candidates do not count thoughts; the prompt counts what came from the cache."""
        t = self.tokens
        return known(
            {
                "promptTokenCount": t.input,
                "cachedContentTokenCount": t.cached,
                "candidatesTokenCount": None if t.output is None else t.output - (t.reasoning or 0),
                "thoughtsTokenCount": t.reasoning,
                "totalTokenCount": total(t),
            }
        )

    def _response(self, parts: list[Json], stop: str | None = None) -> Json:
        candidate: Json = {"index": 0, "content": {"role": "model", "parts": parts}}
        if stop is not None:
            candidate["finishReason"] = stop
        found: Json = {"candidates": [candidate], "modelVersion": self.model, "responseId": self.id}
        return {**found, "usageMetadata": self.usage()} if self.tokens.reported else found

    @staticmethod
    def _call(call: WireCall) -> Json:
        return {"functionCall": {"id": call.id, "name": call.name, "args": call.object or {}}}

    def document(self, reply: Reply) -> Json:
        """See `Wire`."""
        parts: list[Json] = [{"text": reply.thought, "thought": True}] if reply.thought else []
        parts += [{"text": reply.text}] if reply.text else []
        parts += [self._call(call) for call in reply.calls]
        return self._response(parts, "STOP" if reply.calls else self._stops[reply.stop])

    def start(self) -> Iterator[bytes]:
        """See `Wire`."""
        self._called = False
        yield from ()

    def thought(self, pieces: Sequence[str]) -> Iterator[bytes]:
        """See `Wire`."""
        for piece in pieces:
            yield frame(self._response([{"text": piece, "thought": True}]))

    def text(self, pieces: Sequence[str]) -> Iterator[bytes]:
        """See `Wire`."""
        for piece in pieces:
            yield frame(self._response([{"text": piece}]))

    def calls(self, calls: Sequence[WireCall]) -> Iterator[bytes]:
        """See `Wire`. A call comes whole."""
        for call in calls:
            self._called = True
            yield frame(self._response([self._call(call)]))

    def finish(self, stop: Stop) -> Iterator[bytes]:
        """See `Wire`."""
        yield frame(self._response([], "STOP" if self._called else self._stops[stop]))

    def error(self, message: str, code: str) -> Json:
        """See `Wire`."""
        number, status = _CODES.get(code, (500, "INTERNAL"))
        return {"error": {"code": number, "message": message, "status": status}}
