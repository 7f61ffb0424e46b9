"""Whether the cells of a matrix can be meant: checked once, before any attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ageval.config.agents import Kinds, load_agent
from pytest_ageval.config.bindings import bind_role
from pytest_ageval.config.where import did_you_mean, listed
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence, Set

    from pytest_ageval.config.dataset import Dataset
    from pytest_ageval.config.job import JobOptions
    from pytest_ageval.config.tasks import TaskDocument
    from pytest_ageval.config.variants import Variant

#: Spellings of the options that give a cell its values.
CELL_OPTIONS = ("--matrix", "--effort", "--model")


def check_names(variants: Sequence[Variant], job: JobOptions, registry: Kinds) -> None:
    """ConfigError unless every agent and every kind of box exists; it names the cell of a matrix."""
    known: set[str | None] = {None}
    for variant in _cells(variants):
        try:
            for ref in (variant.agent, *(ref for _, ref in variant.role_agents)):
                if ref not in known:
                    load_agent(str(ref), registry)
                    known.add(ref)
            if variant.box is not None:
                registry.box(variant.box)
        except ConfigError as error:
            raise _in_cell(error, variant, job) from None


def check_cells(
    variants: Sequence[Variant],
    job: JobOptions,
    registry: Kinds,
    samples: Iterable[tuple[Dataset, TaskDocument]],
    declared: Set[str],
) -> None:
    """ConfigError for a cell that no task can have: a parameter that none declares, a setting that the agent
    does not take.

    `declared` are the parameters of all tasks. Agents are tried on the roles of `samples`: one task of each
    data set. Without a matrix, and with one effort, each task says itself what is wrong.
    """
    if not job.matrix and len(job.efforts) < 2:
        return
    for override in job.parsed_matrix.overrides():
        name = override.tokens[1]
        if override.tokens[0] == "parameters" and name not in declared:
            raise ConfigError(
                "invalid_option",
                f"--matrix {override.pointer}: no task declares a parameter {name!r}; "
                f"declared: {listed(declared)}",
                hint=did_you_mean(name, declared),
            )
    for dataset, task in samples:
        for variant in _cells(variants):
            for role in task.roles:
                try:
                    bind_role(role, task, dataset, variant, job, registry)
                except ConfigError as error:
                    if error.file in CELL_OPTIONS:
                        raise _in_cell(error, variant, job) from None
                    break  # it is not the cell that is wrong: the task will say so


def _cells(variants: Sequence[Variant]) -> Iterator[Variant]:
    """The first attempt of each cell: the others are like it."""
    return (variant for variant in variants if variant.attempt == 1)


def _in_cell(error: ConfigError, variant: Variant, job: JobOptions) -> ConfigError:
    if not job.matrix and len(job.efforts) < 2:
        return error
    return ConfigError(
        error.code,
        f"in the cell {variant.name!r} of the matrix ({variant.words()}): {error.message}",
        file=error.file,
        pointer=error.pointer,
        line=error.line,
        hint=error.hint,
    )
