"""One attempt: environment, run, evaluate, record, cleanup. Knows nothing of pytest.

    attempt = Attempt(locked, hooks=hooks, registry=registry, identity=Identity(), runs_dir=path)
    try:
        await attempt.environment()
        await attempt.run()
        await attempt.evaluate()
    finally:
        await attempt.record()
        await attempt.cleanup()
    attempt.outcome.status      # PASS, FAIL or ERROR

Each phase is one module of this package with a function of the same name.
"""

from pytest_ageval.attempt.context import Attempt, AttemptOptions
from pytest_ageval.attempt.identity import Identity, new_run_id
from pytest_ageval.attempt.outcome import Outcome
from pytest_ageval.attempt.resume import ResumeError, Unsettled, unsettled

__all__ = [
    "Attempt",
    "AttemptOptions",
    "Identity",
    "Outcome",
    "ResumeError",
    "Unsettled",
    "new_run_id",
    "unsettled",
]
