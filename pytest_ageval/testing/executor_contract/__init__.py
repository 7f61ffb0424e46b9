"""What every executor must do, as tests that its author runs against it, without network and key.

    from pytest_ageval.testing.executor_contract import ExecutorContract

    class TestMyExecutor(ExecutorContract):
        executor_class = MyExecutor
        wire = "chat"
        takes_tools = True

Each test opens a session against a `ScriptedModel` on the loopback interface, in a box of its own where
the executor needs one, and says in its docstring what it demands. What does not apply to an executor
(`wire`, `takes_tools`, `own_tools`, ... in `Hooks`) is skipped. What it should be able to do and cannot
is named in `cannot`, with the reason: these tests must fail, so that the list stays true.

For the details of a failing assertion, put
``pytest.register_assert_rewrite("pytest_ageval.testing.executor_contract")`` before the import.
"""

from pytest_ageval.testing.executor_contract.base import KEY, Stage, Told
from pytest_ageval.testing.executor_contract.ending import Bounds, Cancel, Death
from pytest_ageval.testing.executor_contract.failures import Failures
from pytest_ageval.testing.executor_contract.lifecycle import Declaration, Lifecycle
from pytest_ageval.testing.executor_contract.resume import Resume
from pytest_ageval.testing.executor_contract.secrets import Secrets
from pytest_ageval.testing.executor_contract.tools import Permissions, TaskTools
from pytest_ageval.testing.executor_contract.turns import Turns
from pytest_ageval.testing.executor_contract.usage import Accounting

__all__ = ["KEY", "ExecutorContract", "Stage", "Told"]


class ExecutorContract(
    Declaration,
    Lifecycle,
    Turns,
    Accounting,
    Failures,
    Cancel,
    Death,
    Bounds,
    TaskTools,
    Permissions,
    Secrets,
    Resume,
):
    """All of the contract. Subclass it, set `executor_class` and what applies of `Hooks`."""
