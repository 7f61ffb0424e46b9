"""The executor contract: the key is at the model, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ageval.errors import ExecutorError
from pytest_ageval.testing.executor_contract.base import KEY, Hooks, Play, Stage
from pytest_ageval.testing.scripted_model import Fault, Garbage, HttpError, Malformed, StreamError, Text

#: Ways in which a provider repeats the key that it was sent.
REPEATED: dict[str, Fault] = {
    "error": HttpError(401, f"the key {KEY} is not known", times=None),
    "code": HttpError(400, "no", code=KEY, times=None),
    "page": Garbage(f"<html>{KEY}</html>", times=None),
    "stream": StreamError(f"the key {KEY} is used up", KEY, times=None),
    "not-json": Malformed(times=None),
}


class Secrets(Hooks):
    """Results, events, steps, logs, exceptions and the raw directory do not hold the key."""

    @pytest.mark.parametrize("how", REPEATED)
    def test_key_that_the_provider_repeats(
        self, play: Play, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
    ) -> None:
        """A key in the provider's own words is masked in all that is told of the failure."""
        self.needs_model()
        raw = tmp_path / "raw"

        async def body(stage: Stage) -> None:
            result = await stage.invoke()
            assert not result.ok
            await stage.executor.close()
            assert KEY not in repr(result)
            assert KEY not in stage.told.everything
            assert KEY not in caplog.text

        with caplog.at_level("DEBUG"):
            play(body, by=lambda request: REPEATED[how], raw_dir=raw)
        assert not [path for path in raw.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]

    def test_key_of_an_ordinary_turn(
        self, play: Play, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """A session that works tells its key to nobody either, and does not print it."""
        self.needs_model()
        raw = tmp_path / "raw"

        async def body(stage: Stage) -> None:
            result = await stage.invoke()
            assert result.ok, result.error
            await stage.executor.close()
            assert KEY not in repr(result)
            assert KEY not in stage.told.everything
            assert KEY not in repr(stage.executor)
            assert KEY not in caplog.text

        with caplog.at_level("DEBUG"):
            play(body, Text("an answer"), raw_dir=raw)
        assert KEY not in "".join(capfd.readouterr())
        assert not [path for path in raw.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]

    @pytest.mark.parametrize("url", ["http://[broken", "nonsense://127.0.0.1:9/v1", "http://127.0.0.1:0/v1"])
    def test_key_and_an_address_that_is_none(self, play: Play, url: str) -> None:
        """An address that cannot be used is an error that does not show the key."""
        self.needs_model()
        told: list[str] = []

        async def body(stage: Stage) -> None:
            try:
                executor = await stage.open()
                result = await executor.invoke("hello")
            except ExecutorError as error:
                told.append(f"{error} {error.as_dict()} {error.__cause__!r}")
            else:
                assert not result.ok
                told.append(repr(result))

        play(body, opened=False, base_url=url)
        assert KEY not in told[0]
