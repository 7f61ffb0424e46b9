"""The executor contract: a session that another process continues."""

from __future__ import annotations

import json

import pytest

from pytest_ageval.errors import ExecutorError
from pytest_ageval.testing.executor_contract.base import KEY, Hooks, Play, Stage, Told, said_in_order
from pytest_ageval.testing.scripted_model import Text, When

_ANSWERS = tuple(When(f"question {number}", [Text(f"answer {number}")]) for number in (3, 2, 1))


class Resume(Hooks):
    """`resume_token` and `resume`; what a class does not declare must be refused."""

    def needs_resume(self) -> None:
        """Skip the test for an executor whose sessions end with their process."""
        self.needs(self.executor_class.resumable, "cannot continue a session")

    def test_session_goes_on_in_another_process(self, play: Play) -> None:
        """With the token, and nothing else of the first session, the next turn has the whole history."""
        self.needs_resume()

        async def body(stage: Stage) -> None:
            assert stage.executor.resume_token() is None, "nothing was said yet"
            for number in (1, 2):
                assert (await stage.invoke(f"question {number}")).ok
            token = json.loads(json.dumps(stage.executor.resume_token()))
            assert token is not None
            await stage.executor.close()
            told = Told()
            later = stage.make(told)
            await later.resume(token)
            result = await later.invoke("question 3")
            assert result.ok, result.error
            assert result.text == "answer 3"
            words = ["question 1", "answer 1", "question 2", "answer 2", "question 3"]
            assert said_in_order(stage.asked("question 3")[-1], words)
            assert told.text() == "answer 3", "what is past is not told again"
            assert later.resume_token()

        play(body, *_ANSWERS)

    def test_token_is_plain_and_holds_no_secret(self, play: Play) -> None:
        """The token is JSON without the key, also when the model has said the key."""
        self.needs_resume()

        async def body(stage: Stage) -> None:
            assert (await stage.invoke("question 1")).ok
            token = stage.executor.resume_token()
            assert isinstance(token, dict)
            assert json.loads(json.dumps(token)) == token
            assert KEY not in json.dumps(token)
            await stage.invoke("tell me")
            assert KEY not in json.dumps(stage.executor.resume_token())

        play(body, When("tell me", [Text(f"it is {KEY}")]), *_ANSWERS)

    @pytest.mark.parametrize("token", [{}, {"of": "somebody else"}], ids=["empty", "foreign"])
    def test_token_of_nobody(self, play: Play, token: dict[str, str]) -> None:
        """A token that is none: ``resume_token_invalid``, or ``resume_unsupported`` where not declared."""

        async def body(stage: Stage) -> None:
            executor = stage.make()
            with pytest.raises(ExecutorError) as refused:
                await executor.resume(token)
            declared = self.executor_class.resumable
            assert refused.value.title == ("resume_token_invalid" if declared else "resume_unsupported")
            assert declared or executor.resume_token() is None

        play(body, opened=False)

    def test_session_that_is_gone(self, play: Play) -> None:
        """A session that the agent no longer has is ``session_gone``, never a new one."""
        self.needs_resume()

        async def body(stage: Stage) -> None:
            assert (await stage.invoke("question 1")).ok
            token = stage.executor.resume_token()
            assert token is not None
            missing = self.gone(token)
            self.needs(missing is not None, "keeps its whole session in the token")
            await stage.executor.close()
            later = stage.make()
            try:
                await later.resume(missing or {})
                # An agent that replays nothing may be found out by the first turn only.
                title = str((await later.invoke("question 2")).error).partition(":")[0]
            except ExecutorError as error:
                title = error.title
            assert title == "session_gone"

        play(body, *_ANSWERS)
