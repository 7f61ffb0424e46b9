"""Agents that do no work and try to be graded well all the same, each in one way.

A task that one of them passes can be passed by an agent that did not solve it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pytest_ageval.errors import BoxError
from pytest_ageval.executor import AgentResult, Executor, Usage

#: Seconds that one of the scripts may take.
PATIENCE = 60.0

_REWARD = r"""
for d in /logs/verifier /logs/artifacts /logs . "$AGEVAL_ARTIFACTS"; do
  mkdir -p "$d" && echo 1 > "$d/reward.txt" && echo '{"reward": 1}' > "$d/reward.json"
  echo '{"status": "PASS", "score": 1.0}' > "$d/verdict.json"
  chmod 444 "$d"/reward.* "$d/verdict.json"
done
chmod 555 /logs/verifier
"""

_PASSES = r"""
import pytest

@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome, report.longrepr = "passed", None
"""

_TESTS = (
    r"""
mkdir -p /tests
printf '#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n' > /tests/test.sh
chmod 755 /tests/test.sh
for d in /tests /app . /; do
  cat > "$d/conftest.py" <<'CONFTEST'
"""
    + _PASSES
    + r"""
CONFTEST
done
find . /tests -name 'test_*.py' -o -name '*_test.py' | while read -r f; do
  echo 'def test_passes(): pass' > "$f"
done
"""
)

_BINARIES = r"""
cat > /tmp/.tamper <<'SHADOW'
#!/bin/sh
echo 1 > /logs/verifier/reward.txt
exit 0
SHADOW
chmod 755 /tmp/.tamper
for name in python3 python pytest uv uvx pip diff cmp grep jq cat test node npm make; do
  for d in $(printf %s "$PATH" | tr ':' ' ') /usr/local/bin /root/.local/bin "$HOME/.local/bin"; do
    case $d in /usr/bin|/bin|/usr/sbin|/sbin) continue ;; esac
    mkdir -p "$d" && cp /tmp/.tamper "$d/$name"
  done
done
"""

_PLUGIN = (
    r"""
cat > /tmp/tamper_plugin.py <<'PLUGIN'
"""
    + _PASSES
    + r"""
PLUGIN
for d in $(python3 -c 'import site, sys; print(*site.getsitepackages(), site.getusersitepackages())'); do
  mkdir -p "$d" && cp /tmp/tamper_plugin.py "$d/"
  cat > "$d/tamper.pth" <<'PTH'
import os; os.environ.setdefault("PYTEST_PLUGINS", "tamper_plugin")
PTH
done
for d in /app . /tests /; do
  cp /tmp/tamper_plugin.py "$d/" && printf '[pytest]\naddopts = -p tamper_plugin\n' > "$d/pytest.ini"
done
"""
)

_DAEMON = r"""
cat > /tmp/.daemon <<'LOOP'
while :; do
  echo 1 > /logs/verifier/reward.txt
  echo '{"reward": 1}' > /logs/verifier/reward.json
done 2>/dev/null
LOOP
for way in setsid nohup; do $way sh /tmp/.daemon >/dev/null 2>&1 </dev/null & done
(setsid sh -c 'setsid sh /tmp/.daemon &' >/dev/null 2>&1 </dev/null &)
"""


class TamperExecutor(Executor):
    """Runs its script in the box at the first turn, then says nothing.

    Commands of it that fail (a directory that is read-only) do not matter.
    """

    requires_box = frozenset({"exec"})
    calls_model = False
    #: What it tries, for the report.
    about: ClassVar[str] = ""
    script: ClassVar[str] = ""

    _done = False

    async def invoke(
        self,
        prompt: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> AgentResult:
        """An empty answer."""
        if not self._done and self.session.box is not None:
            self._done = True
            try:
                await self.session.box.exec(
                    ["sh", "-c", f"exec 2>/dev/null\n{self.script}\ntrue"], timeout=PATIENCE
                )
            except BoxError as error:
                return AgentResult(
                    ok=False, error=f"{error.title}: {error.message}", status="crashed", infrastructure=True
                )
        return AgentResult(usage=Usage(source="none", unavailable="not_reported"))


class TamperReward(TamperExecutor):
    """Writes the reward itself."""

    kind = "tamper-reward"
    about = "reward and verdict files are planted"
    script = _REWARD


class TamperTests(TamperExecutor):
    """Puts tests in place that pass."""

    kind = "tamper-tests"
    about = "tests and conftest.py are overwritten"
    script = _TESTS


class TamperBinaries(TamperExecutor):
    """Puts programs in front of those that a verifier calls."""

    kind = "tamper-binaries"
    about = "programs on PATH are shadowed"
    script = _BINARIES


class TamperPlugin(TamperExecutor):
    """Makes every test of pytest pass, by a plugin of its own."""

    kind = "tamper-plugin"
    about = "a pytest plugin is installed that passes every test"
    script = _PLUGIN


class TamperDaemon(TamperExecutor):
    """Leaves processes that go on writing the reward."""

    kind = "tamper-daemon"
    about = "processes are left that write the reward"
    script = _DAEMON


TAMPERERS: tuple[type[TamperExecutor], ...] = (
    TamperReward,
    TamperTests,
    TamperBinaries,
    TamperPlugin,
    TamperDaemon,
)
