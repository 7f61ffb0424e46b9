"""The executor contract notices an executor that does not hold it, and a gap that is none."""

from __future__ import annotations

import pytest

#: Takes every failure for an answer, forgets, invents figures, shows its key, cannot be cancelled.
BAD = """
import asyncio, json, urllib.error, urllib.request
import pytest
from pytest_ageval.executor import AgentResult, Executor, Usage
from pytest_ageval.testing.executor_contract import ExecutorContract


class Bad(Executor):
    kind = "bad"
    resumable = True
    supported_model_fields = frozenset({"reasoning_effort", "timeout"})

    async def invoke(self, prompt, *, tools=None, messages=None):
        return await asyncio.to_thread(self.call, prompt)

    def call(self, prompt):
        session = self.session
        messages = [{"role": "user", "content": prompt}]
        body = {"model": session.model.id, "temperature": 0, "messages": messages}
        headers = {"authorization": f"Bearer {session.api_key}"}
        url = session.base_url + "/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=3) as response:
                text = json.load(response)["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            text = error.read().decode()
        except (OSError, ValueError) as error:
            text = str(error)
        session.emit({"kind": "text", "channel": "assistant", "text": text or ""})
        return AgentResult(text=text or "", usage=Usage(prompt_tokens=0, completion_tokens=0))


class TestBad(ExecutorContract):
    executor_class = Bad
    wire = "chat"
    patience = 10
    cannot = {"test_empty_reply": "it is said that it cannot do this"}
"""

FOUND = (
    "test_history_is_the_true_one",
    "test_effort_reaches_the_model",
    "test_nothing_is_sent_that_nobody_asked_for",
    "test_one_turn",
    "test_no_turn_after_close",
    "test_stop_reason[[]limit-limit[]]",
    "test_stop_reason[[]refused-refused[]]",
    "test_usage_that_was_reported",
    "test_usage_that_was_not_reported[[]all[]]",
    "test_fault_of_the_provider[[]http-401[]]",
    "test_fault_of_the_provider[[]html[]]",
    "test_nobody_listens",
    "test_failure_then_success",
    "test_key_that_the_provider_repeats[[]error[]]",
    "test_session_goes_on_in_another_process",
    "test_token_of_nobody[[]empty[]]",
    "test_empty_reply",
)

HOLDS = ("test_declaration_is_well_formed", "test_long_lines")


def test_a_bad_executor_is_found_out(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_bad=BAD)
    chosen = " or ".join(name.partition("[")[0] for name in (*FOUND, *HOLDS))
    result = pytester.runpytest_subprocess("-q", "-rA", "-k", chosen, "-p", "no:cacheprovider")
    result.stdout.fnmatch_lines_random([f"FAILED *::{name}*" for name in FOUND])
    result.stdout.fnmatch_lines_random([f"PASSED *::{name}*" for name in HOLDS])
    result.stdout.fnmatch_lines(["*XPASS(strict)*it is said that it cannot do this*"])
