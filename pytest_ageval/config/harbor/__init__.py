"""Harbor tasks: a directory with ``task.toml`` and ``instruction.md``, read without conversion."""

from pytest_ageval.config.harbor.dataset import harbor_dataset, harbor_root
from pytest_ageval.config.harbor.document import HarborStep, HarborTask, HarborVerifier
from pytest_ageval.config.harbor.task import TASK_TOML, load_harbor_task

__all__ = [
    "TASK_TOML",
    "HarborStep",
    "HarborTask",
    "HarborVerifier",
    "harbor_dataset",
    "harbor_root",
    "load_harbor_task",
]
