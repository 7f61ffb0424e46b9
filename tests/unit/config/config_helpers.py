"""A data set on disk, and kinds of box and executors that open nothing."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import msgspec

from pytest_ageval.box import Box
from pytest_ageval.config import JobOptions, LockedTask, load_dataset, load_task, lock_task, plan_variants
from pytest_ageval.executor import Executor
from pytest_ageval.registry import Registry


class RoomBox(Box):
    """A kind with options, of which no box is ever opened."""

    kind = "room"
    capabilities = frozenset({"exec", "upload", "download"})

    class Options(msgspec.Struct, forbid_unknown_fields=True):
        image: str | None = None
        windows: int = 1


class YardBox(Box):
    """A kind without options that offers everything."""

    kind = "yard"
    capabilities = frozenset({"exec", "upload", "download", "attach_stdio", "compose"})


class ParrotExecutor(Executor):
    """Calls from the host; knows chat, effort and temperature."""

    kind = "parrot"
    supported_model_fields = frozenset({"reasoning_effort", "timeout"})
    extra_allowlist = frozenset({"temperature", "seed"})
    requires_model = True
    default_api_key_name = "PARROT_KEY"
    default_base_url_name = "PARROT_URL"

    class Options(msgspec.Struct, forbid_unknown_fields=True):
        volume: int = 3


class TenantExecutor(Executor):
    """Lives in the box."""

    kind = "tenant"
    requires_box = frozenset({"attach_stdio"})


class DataSet:
    """Writes a data set and locks its tasks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.registry = Registry(
            [{"room": RoomBox, "yard": YardBox}],
            [{"parrot": ParrotExecutor, "tenant": TenantExecutor}],
        )
        self.write("ageval.yaml", 'format: ageval.dataset/1\ndataset_id: demo/one\nversion: "1"\n')

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def task(self, more: str = "", name: str = "t") -> Path:
        """A task; `more` is appended to its task.yaml. The path of that file."""
        head = f"format: ageval.task/1\ntask_id: {name}\n"
        path = self.write(f"tasks/{name}/task.yaml", head + textwrap.dedent(more))
        self.write(f"tasks/{name}/run.py", "async def run(ctx): ...\n")
        self.write(f"tasks/{name}/evaluator.py", "def evaluate(ctx): ...\n")
        return path

    def profiles(self, text: str) -> Path:
        return self.write("profiles.yaml", "format: ageval.profiles/1\n" + textwrap.dedent(text))

    def locks(self, name: str = "t", **options: Any) -> list[LockedTask]:
        """One lock a variant."""
        job = JobOptions(**options)
        dataset = load_dataset(self.root)
        task = load_task(self.root / "tasks" / name)
        return [lock_task(task, dataset, variant, job, self.registry) for variant in plan_variants(job)]

    def lock(self, name: str = "t", **options: Any) -> LockedTask:
        (locked,) = self.locks(name, **options)
        return locked
