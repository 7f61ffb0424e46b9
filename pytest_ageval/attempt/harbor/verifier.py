"""Grades the work of one step: tests go up when nobody else can write, test.sh runs, its reward is read."""

from __future__ import annotations

import asyncio
import base64
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_ageval.attempt.guard import drop
from pytest_ageval.attempt.harbor import logs, networks, trajectory
from pytest_ageval.attempt.harbor.artifacts import Kept, collect, put_back
from pytest_ageval.attempt.harbor.regrade import restored
from pytest_ageval.attempt.harbor.reward import LIMIT, Found, read_rewards
from pytest_ageval.box import WORKSPACE, Box, ExecResult, system_script
from pytest_ageval.config.harbor.box import verifier_options
from pytest_ageval.config.harbor.document import AGENT_LOGS, ARTIFACTS, MAIN, TESTS, VERIFIER_LOGS
from pytest_ageval.config.harbor.templates import resolve
from pytest_ageval.errors import AgevalError, EvaluatorError

if TYPE_CHECKING:
    from pytest_ageval.attempt.context import Attempt
    from pytest_ageval.attempt.harbor.state import StepRecord
    from pytest_ageval.config.harbor.document import HarborStep, HarborVerifier

#: Seconds for the small commands around the verifier.
PATIENCE = 120.0

#: Removes the directories of the verifier and makes that of its logs anew, for its user; the tests bring
#: theirs. What cannot be removed, or is there again, is told by exit code 3.
_RESET = """
for d in /tests /logs/verifier; do
  chattr -R -i "$d" 2>/dev/null
  rm -rf "$d" 2>/dev/null || { chmod -R u+rwx "$d" 2>/dev/null; rm -rf "$d"; }
  if [ -e "$d" ] || [ -L "$d" ]; then echo "$d" >&2; exit 3; fi
done
[ ! -L /logs ] || { echo /logs >&2; exit 3; }
mkdir -p /logs/verifier /logs/agent /logs/artifacts || exit 3
# Whoever the image says runs test.sh; nobody else runs in the box by now.
chmod 777 /logs/verifier
"""

#: The system's bash before any that an agent may have put in front of it.
_NO_BASH = "ageval: no bash"
_BASH = f"""
for b in /bin/bash /usr/bin/bash /usr/local/bin/bash; do [ -x "$b" ] && exec "$b" "$@"; done
command -v bash >/dev/null && exec bash "$@"
echo '{_NO_BASH}' >&2
exit 127
"""

#: Says of two paths what they are, how many bytes they have, and their first bytes as base64: of the first on
#: stdout, of the second on stderr, since each stream has room for one. Opens regular files only.
_LOOK = """
look() {
f=$1
if [ -L "$f" ]; then echo "other a symbolic link"
elif [ -d "$f" ]; then echo "other a directory"
elif [ -f "$f" ]; then echo "file $(wc -c < "$f" | tr -d ' ')"; head -c "$2" "$f" | base64
elif [ -e "$f" ]; then echo "other neither a file nor a directory"
else echo absent; fi
}
look "$1" "$3" 2>/dev/null
look "$2" "$3" 3>&2 2>/dev/null >&3
"""


async def as_root(box: Box, script: str, *arguments: str) -> ExecResult:
    """Run a script of ours with the system's programs, not with those that an agent put before them."""
    return await box.exec(system_script(script, *arguments), user="root", timeout=PATIENCE)


async def verify(attempt: Attempt, step: HarborStep, record: StepRecord) -> None:
    """Fill `record`. An error of the task or the box is in it too; only an interrupt is raised."""
    started = time.monotonic()
    try:
        if attempt.source is not None:
            kept = await restored(attempt, step)
        else:
            if attempt.past is not None:  # what the process before had fetched may be half of it
                await asyncio.to_thread(drop, attempt.evidence.layout.harbor_artifacts(step.name))
            await trajectory.leave(attempt, step)
            kept = await collect(attempt, step)
        if step.verifier.separate:
            await _in_its_own_box(attempt, step, record, kept)
        else:
            await networks.of_verifier(attempt, step)
            await _grade(attempt, attempt.raw_box, step, record)
            await networks.of_environment(attempt)
    except AgevalError as error:
        record.error = error
    record.seconds["verifier"] = round(time.monotonic() - started, 3)


async def _in_its_own_box(attempt: Attempt, step: HarborStep, record: StepRecord, kept: list[Kept]) -> None:
    task = attempt.locked.harbor
    assert task is not None
    origin = attempt.raw_box.spec
    work = origin.work_dir.with_name(f"{origin.work_dir.name}-verify-{len(attempt.scoring_boxes)}")
    options = verifier_options(task, step.verifier, attempt.locked.task_root)
    spec = replace(origin, work_dir=work, options=options, resources=dict(step.verifier.resources), layers=())
    box = attempt.registry.box(spec.kind)(spec)
    try:
        await box.preflight()
        await box.start()
        attempt.fact("verifier_environment_started", {"step": step.name, "kind": box.kind})
        if step.verifier.healthcheck is not None:
            await wait_healthy(attempt, box, step.verifier.healthcheck)
        await put_back(box, kept)
        await _grade(attempt, box, step, record)
    finally:
        await box.stop()


async def _grade(attempt: Attempt, box: Box, step: HarborStep, record: StepRecord) -> None:
    verifier = step.verifier
    await _prepare(attempt, box, verifier)
    env = await _environment(attempt, box, verifier)
    command = ["/bin/sh", "-c", _BASH, "sh", f"{TESTS}/test.sh"]
    done = await box.exec(command, cwd=WORKSPACE, env=env, user=verifier.user, timeout=verifier.timeout_sec)
    record.exit_code = done.exit_code
    attempt.evidence.write_verifier_output(step.name, done.stdout, done.stderr)
    # Nothing that test.sh left behind writes while its reward is read.
    await box.quiesce()
    record.judges = await logs.keep(attempt, box, step.name)
    if done.timed_out:
        raise EvaluatorError(
            "verifier_timeout",
            f"tests/test.sh was still running after {verifier.timeout_sec:g} s (verifier.timeout_sec)",
            detail=attempt.redactor.text((done.stdout + done.stderr)[-2000:]) or None,
        )
    if done.exit_code == 127 and done.stderr.startswith(_NO_BASH):
        raise EvaluatorError("verifier_no_bash", "tests/test.sh is run by bash, and the image has none")
    try:
        record.rewards = read_rewards(*await _look(box, "reward.txt", "reward.json"))
    except EvaluatorError as error:
        tail = (done.stderr or done.stdout)[-2000:]
        error.message += f" (test.sh ended with exit code {done.exit_code})"
        error.detail = error.detail or attempt.redactor.text(tail) or None
        raise


async def _prepare(attempt: Attempt, box: Box, verifier: HarborVerifier) -> None:
    """What the agent left in the verifier's directories is gone; the tests are there."""
    if verifier.bundled:
        done = await as_root(box, "mkdir -p /logs/verifier && chmod 777 /logs/verifier")
    else:
        done = await as_root(box, _RESET)
    if not done.ok:
        raise EvaluatorError(
            "reward_path_not_clean",
            f"the verifier's directories cannot be made anew: {done.stderr.strip()[:200]}",
        )
    if verifier.bundled:
        return
    tests = attempt.locked.task_root / verifier.tests
    await box.upload(tests, TESTS, service=MAIN)
    owner = verifier.user or ""
    script = f'chmod -R a+rX {TESTS} && {{ [ -z "$1" ] || chown -R "$1" {TESTS} {VERIFIER_LOGS}; }}'
    done = await as_root(box, script, owner)
    if not done.ok:
        raise EvaluatorError("verifier_prepare_failed", done.stderr.strip()[:300])
    attempt.fact("gold_materialized", {"at": "evaluate", "step": verifier.tests})


async def _environment(attempt: Attempt, box: Box, verifier: HarborVerifier) -> dict[str, str]:
    try:
        return await networks.reachable(box, verifier.env, resolve(verifier.env, attempt.secret))
    except KeyError as error:
        raise EvaluatorError(
            "unset_variable", f"verifier.env: the variable {error.args[0]} is not set"
        ) from None


async def _look(box: Box, first: str, second: str) -> tuple[Found, Found]:
    paths = [f"{VERIFIER_LOGS}/{name}" for name in (first, second)]
    done = await as_root(box, _LOOK, *paths, str(LIMIT))
    return _found(paths[0], done.stdout), _found(paths[1], done.stderr)


def _found(path: str, said: str) -> Found:
    head, _, rest = said.partition("\n")
    kind, _, more = head.partition(" ")
    if kind == "file" and more.strip().isdigit():
        return Found("file", base64.b64decode("".join(rest.split())), int(more))
    if kind == "other":
        return Found("other", what=more.strip())
    if kind == "absent":
        return Found()
    raise EvaluatorError("verifier_unreadable", f"{path}: {said.strip()[:200]}")


async def clear(box: Box) -> None:
    """Take tests, logs and rewards away, so that the next step's agent does not find them."""
    script = f"rm -rf {TESTS} {VERIFIER_LOGS}; mkdir -p {VERIFIER_LOGS} {AGENT_LOGS} {ARTIFACTS}"
    done = await as_root(box, script)
    if not done.ok:
        raise EvaluatorError("verifier_left_behind", done.stderr.strip()[:300])


async def wait_healthy(attempt: Attempt, box: Box, check: Any) -> None:
    """Run a health check until it succeeds; BoxError ``environment_unhealthy`` after its retries."""
    from pytest_ageval.errors import BoxError

    begun = time.monotonic()
    failures = 0
    while True:
        done = await box.exec(["sh", "-c", check.command], cwd=WORKSPACE, timeout=check.timeout_sec)
        if done.ok:
            return
        starting = time.monotonic() - begun < check.start_period_sec
        failures += 0 if starting else 1
        if failures >= check.retries:
            how = f"no answer after {check.timeout_sec:g} s" if done.timed_out else f"exit {done.exit_code}"
            raise BoxError(
                "environment_unhealthy",
                f"the health check failed {failures} times ({how}): {check.command}",
                detail=attempt.redactor.text((done.stderr or done.stdout)[-1000:]) or None,
            )
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)
