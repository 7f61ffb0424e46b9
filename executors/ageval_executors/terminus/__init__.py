"""The executor ``terminus-2``: the model types into a terminal in the box."""

from ageval_executors.terminus.executor import TerminusExecutor, TerminusOptions

__all__ = ["TerminusExecutor", "TerminusOptions"]
