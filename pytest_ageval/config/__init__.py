"""From files and options to a locked task."""

from pytest_ageval.config.agents import AgentPackage, known_agents, load_agent
from pytest_ageval.config.bindings import unbound_roles
from pytest_ageval.config.dataset import Dataset, find_dataset_root, load_dataset
from pytest_ageval.config.env import resolve_secret
from pytest_ageval.config.job import JobOptions, check_roles
from pytest_ageval.config.lock import lock_task
from pytest_ageval.config.locked import (
    Artifact,
    Binding,
    BoxBinding,
    Collect,
    Evaluation,
    EvaluationInput,
    Limits,
    LockedTask,
    Resolution,
    ScoringBox,
)
from pytest_ageval.config.profiles import Profiles, load_profiles
from pytest_ageval.config.tasks import TaskDocument, load_task
from pytest_ageval.config.variants import Variant, plan_variants
from pytest_ageval.config.yamlio import load_yaml

__all__ = [
    "AgentPackage",
    "Artifact",
    "Binding",
    "BoxBinding",
    "Collect",
    "Dataset",
    "Evaluation",
    "EvaluationInput",
    "JobOptions",
    "Limits",
    "LockedTask",
    "Profiles",
    "Resolution",
    "ScoringBox",
    "TaskDocument",
    "Variant",
    "check_roles",
    "find_dataset_root",
    "known_agents",
    "load_agent",
    "load_dataset",
    "load_profiles",
    "load_task",
    "load_yaml",
    "lock_task",
    "plan_variants",
    "resolve_secret",
    "unbound_roles",
]
