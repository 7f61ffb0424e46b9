"""What the figures of each agent mean, in one place.

The protocol does not say whether ``usage`` counts a turn or a session, whether the input includes
cached tokens, or whether the output includes thoughts, and agents differ in all three. A figure is
reported only as far as its meaning is known; everything that arrived is kept under ``usage_raw``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pytest_ageval.executor import Usage, UsageGap

#: turn: the figures count this turn. session: they count everything so far. last_call: they count
#: the last model call of the turn only. calls: each update counts one call, and they are summed here.
#: gauge: the agent reports no figures, only a context size.
Scope = Literal["turn", "session", "last_call", "calls", "gauge"]

_FIELDS = {
    "input": "inputTokens",
    "output": "outputTokens",
    "total": "totalTokens",
    "thought": "thoughtTokens",
    "read": "cachedReadTokens",
    "write": "cachedWriteTokens",
}
#: Names of the same figures where an agent has its own.
_OTHER_NAMES = {
    "reasoningTokens": "thoughtTokens",
    "cacheCreationTokens": "cachedWriteTokens",
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_tokens": "cachedReadTokens",
    "reasoning_tokens": "thoughtTokens",
}
_METRICS = "openhands.dev/metrics"


@dataclass(frozen=True, slots=True)
class UsageRule:
    """How to read one agent's figures. None: not known, decide by the total."""

    scope: Scope = "turn"
    input_has_cache: bool | None = None
    output_has_thought: bool | None = None


@dataclass(frozen=True, slots=True)
class _Counts:
    input: int | None = None
    output: int | None = None
    total: int | None = None
    thought: int | None = None
    read: int | None = None
    write: int | None = None

    @classmethod
    def of(cls, raw: Any) -> _Counts | None:
        if not isinstance(raw, Mapping):
            return None
        named = {_OTHER_NAMES.get(key, key): value for key, value in raw.items()}
        found = {name: _count(named.get(key)) for name, key in _FIELDS.items()}
        known = found["input"] is not None or found["output"] is not None
        return cls(**found) if known else None

    def minus(self, other: _Counts | None) -> _Counts:
        if other is None:
            return self
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in _FIELDS}
        return _Counts(
            **{
                name: None if now is None else max(0, now - (before or 0))
                for name, (now, before) in pairs.items()
            }
        )

    def plus(self, other: _Counts | None) -> _Counts:
        if other is None:
            return self
        sums = {}
        for name in _FIELDS:
            known = [v for v in (getattr(self, name), getattr(other, name)) if v is not None]
            sums[name] = sum(known) if known else None
        return _Counts(**sums)


def _count(value: Any) -> int | None:
    ok = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
    return value if ok else None


class UsageTracker:
    """The usage of one session. Call `start` before each prompt, then `update`, then `finish` or `lost`."""

    def __init__(self, rule: UsageRule) -> None:
        self.rule = rule
        self.raw: dict[str, Any] = {}
        self._session: _Counts | None = None
        self._seen: _Counts | None = None
        self._source = "usage_update"
        self._cost: float | None = None
        self._cost_before: float | None = None
        self._cost_in_turn = False
        self._base_unknown = False
        #: The cost of the session so far is known; not so after a resume that did not tell it.
        self._cost_known = True

    def start(self) -> None:
        """A turn begins: what was reported before (also by a replay) is not its own."""
        self.raw = {}
        self._seen = None
        self._cost_before = self._cost
        self._cost_in_turn = False

    def update(self, update: Mapping[str, Any]) -> dict[str, Any]:
        """Take a ``usage_update``; returns the neutral event."""
        self.raw["usage_update"] = {key: value for key, value in update.items() if key != "sessionUpdate"}
        event: dict[str, Any] = {"kind": "usage", "source": "usage_update"}
        if (used := _count(update.get("used"))) is not None:
            event["context_tokens"] = used
        if (size := _count(update.get("size"))) is not None:
            event["context_size"] = size
        cost = update.get("cost")
        if isinstance(cost, Mapping) and cost.get("currency") == "USD":
            amount = cost.get("amount")
            if isinstance(amount, int | float) and not isinstance(amount, bool) and 0 <= amount < 1e9:
                self._cost, self._cost_in_turn = float(amount), True
                event["cost_usd"] = float(amount)
        if (counts := _Counts.of(update)) is not None:
            self._seen, self._source = counts, "usage_update"
            event["tokens"] = {key: update[key] for key in _FIELDS.values() if key in update}
        event["cumulative"] = self.rule.scope == "session" or "cost_usd" in event
        return event

    def noted(self, params: Mapping[str, Any]) -> None:
        """Take what an update of any kind says beside itself, in ``_meta``.

        Qwen Code counts each call there, OpenHands the whole session.
        """
        update = params.get("update")
        meta = update.get("_meta") if isinstance(update, Mapping) else None
        if self.rule.scope == "calls" and isinstance(meta, Mapping):
            if (counts := _Counts.of(meta.get("usage"))) is not None:
                self.raw.setdefault("calls", []).append(meta["usage"])
                self._seen, self._source = counts.plus(self._seen), "update._meta.usage"
            return
        fields = _dig(params, "_meta", "field_meta")
        metrics = fields.get(_METRICS) if isinstance(fields, Mapping) else None
        if (counts := _Counts.of(metrics)) is not None and isinstance(metrics, Mapping):
            self.raw["metrics"] = metrics
            self._seen, self._source = counts, "update._meta.metrics"
            cost = metrics.get("cost")
            # It says 0 for every model whose price it does not know.
            if isinstance(cost, int | float) and not isinstance(cost, bool) and 0 < cost < 1e9:
                self._cost, self._cost_in_turn = float(cost), True

    def replayed(self) -> None:
        """What a ``session/load`` replayed is the past; cumulative figures are counted from it.

        Where it replayed no figures, what a turn adds to them is known from the second turn on.
        """
        if self.rule.scope == "session":
            self._base_unknown = self._seen is None
            self._session = self._seen
        self._seen = None
        self._cost_known = self._cost is not None

    def finish(self, result: Mapping[str, Any]) -> Usage:
        """The usage of a turn that ended with the prompt's `result`."""
        reported, meta = result.get("usage"), result.get("_meta")
        counts, source = _Counts.of(reported), "prompt_response.usage"
        if reported is not None:
            self.raw["prompt_response"] = reported
        if counts is None and isinstance(meta, Mapping) and (found := _quota(meta)) is not None:
            counts, source = found, "prompt_response._meta.quota"
            self.raw["quota"] = meta["quota"]
        if counts is None and (counts := _Counts.of(_dig(result, "_meta", "usage"))) is not None:
            source = "prompt_response._meta.usage"
            self.raw["prompt_response"] = meta["usage"] if isinstance(meta, Mapping) else None
        if counts is None and self._seen is not None:
            counts, source = self._seen, self._source
        if counts is None:
            gap: UsageGap = "parse_failed" if reported is not None else "not_reported"
            return self._with_cost(Usage(unavailable=gap))
        if self.rule.scope == "session":
            counts, self._session = counts.minus(self._session), counts
        if self._base_unknown:
            self._base_unknown = False
            return self._with_cost(Usage(source=source, unavailable="ambiguous"))
        usage = self._with_cost(self._read(counts, source))
        if self.rule.scope == "last_call" and usage.unavailable is None:
            usage = replace(usage, unavailable="partial", source=f"{source} (last call only)")
        return usage

    def lost(self) -> Usage:
        """The usage of a turn that did not end: the last known figures, marked ``partial``."""
        if self._seen is None:
            usage = self._with_cost(Usage())
            known = usage.cost_usd is not None or "usage_update" in self.raw
            return replace(usage, unavailable="partial" if known else "lost_on_timeout")
        counts = self._seen
        if self.rule.scope == "session":
            counts, self._session = counts.minus(self._session), counts
        if self._base_unknown:
            return self._with_cost(Usage(source=self._source, unavailable="ambiguous"))
        usage = self._with_cost(self._read(counts, self._source))
        return usage if usage.unavailable else replace(usage, unavailable="partial")

    def _with_cost(self, usage: Usage) -> Usage:
        if not self._cost_in_turn or self._cost is None:
            return usage
        if not self._cost_known:
            self._cost_known = True
            return usage
        cost = max(0.0, self._cost - (self._cost_before or 0.0))
        return replace(usage, cost_usd=cost, source=usage.source or "usage_update.cost")

    def _read(self, counts: _Counts, source: str) -> Usage:
        cache = (counts.read or 0) + (counts.write or 0)
        has_cache, has_thought = _meaning(counts, self.rule)
        ambiguous = has_cache is None or has_thought is None
        prompt, completion = counts.input, counts.output
        if prompt is not None:
            prompt = None if has_cache is None else prompt if has_cache else prompt + cache
        if completion is not None:
            extra = 0 if has_thought else counts.thought or 0
            completion = None if has_thought is None else completion + extra
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=counts.read,
            cache_write_tokens=counts.write,
            reasoning_tokens=counts.thought,
            source=source,
            unavailable="ambiguous" if ambiguous else "partial" if None in (prompt, completion) else None,
        )


def _dig(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _meaning(counts: _Counts, rule: UsageRule) -> tuple[bool | None, bool | None]:
    """(input includes the cached tokens, output includes the thoughts); None where it cannot be told."""
    cache, thought = (counts.read or 0) + (counts.write or 0), counts.thought or 0
    fits = [
        (has_cache, has_thought)
        for has_cache in ((True,) if not cache else (True, False))
        for has_thought in ((True,) if not thought else (True, False))
        if rule.input_has_cache in (None, has_cache) or not cache
        if rule.output_has_thought in (None, has_thought) or not thought
        if not (has_cache and counts.input is not None and cache > counts.input)
        if not (has_thought and counts.output is not None and thought > counts.output)
    ]
    if counts.total is not None:
        base = (counts.input or 0) + (counts.output or 0)
        exact = [
            fit
            for fit in fits
            if counts.total == base + (0 if fit[0] else cache) + (0 if fit[1] else thought)
        ]
        fits = exact or (fits if len(fits) == 1 else [])
    has_cache = {fit[0] for fit in fits}
    has_thought = {fit[1] for fit in fits}
    return (
        has_cache.pop() if len(has_cache) == 1 else None,
        has_thought.pop() if len(has_thought) == 1 else None,
    )


def _quota(meta: Mapping[str, Any]) -> _Counts | None:
    """Gemini's ``_meta.quota.token_count``: a turn's input and output."""
    quota = meta.get("quota")
    found = quota.get("token_count") if isinstance(quota, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    counts = _Counts(_count(found.get("input_tokens")), _count(found.get("output_tokens")))
    return counts if counts.input is not None or counts.output is not None else None
