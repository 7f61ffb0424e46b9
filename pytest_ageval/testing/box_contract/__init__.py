"""What every kind of box must do, as tests that the author of a kind runs against their own.

    from pytest_ageval.testing.box_contract import BoxContract

    class TestMyBox(BoxContract):
        box_class = MyBox
        options = {"image": "debian:12-slim"}

Each test opens its own box and says in its docstring what it demands. A box must hold ``sh`` and the
usual small programs (coreutils). Tests of a capability that the kind does not declare are skipped.
Tests with ``heavy`` in their names move hundreds of megabytes: ``-k "not heavy"`` leaves them out.

For the details of a failing assertion, put
``pytest.register_assert_rewrite("pytest_ageval.testing.box_contract")`` before the import.
"""

from pytest_ageval.testing.box_contract.adoption import Adoption, Leftovers
from pytest_ageval.testing.box_contract.commands import Ending, Exec
from pytest_ageval.testing.box_contract.files import Files
from pytest_ageval.testing.box_contract.lifecycle import Declaration, Lifecycle
from pytest_ageval.testing.box_contract.stdio import Stdio

__all__ = ["BoxContract"]


class BoxContract(Declaration, Lifecycle, Exec, Ending, Files, Stdio, Leftovers, Adoption):
    """All of the contract. Subclass it, set `box_class` and `options`, and let pytest collect the class.

    Also to set: `isolated = False` for a kind whose processes see the host's files, `patience` for a
    kind that is slow to start, and `make_spec` for one that needs more in its `BoxSpec`. What a kind
    cannot do it says by `can_be_attached = False` (probe, attach, discard) and `can_be_reaped = False`
    (leftovers, reap). `broken_options` are options that must fail. `box_class` must be importable by
    another process: defined at the top of a module.
    """
