"""The synchronous face of a box, for tests, fixtures and hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_ageval import portal
from pytest_ageval.box import Box, ExecResult


class BoxFace:
    """A box as ordinary code uses it: the methods of `pytest_ageval.box.Box`, waiting for each."""

    def __init__(self, box: Box) -> None:
        self.raw = box

    def __repr__(self) -> str:
        return f"<box {self.raw.kind} {self.raw.spec.attempt_id}>"

    @property
    def kind(self) -> str:
        """The kind's name."""
        return self.raw.kind

    @property
    def capabilities(self) -> frozenset[str]:
        """What the kind offers."""
        return self.raw.capabilities

    def start(self) -> None:
        """`Box.preflight` and `Box.start`."""

        async def start() -> None:
            await self.raw.preflight()
            await self.raw.start()

        portal.run(start())

    def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
        service: str | None = None,
        stdin: bytes | None = None,
    ) -> ExecResult:
        """`Box.exec`."""
        return portal.run(
            self.raw.exec(argv, cwd=cwd, env=env, timeout=timeout, user=user, service=service, stdin=stdin)
        )

    def upload(self, source: str | Path, dest: str, *, service: str | None = None) -> None:
        """`Box.upload`."""
        portal.run(self.raw.upload(Path(source), dest, service=service))

    def download(self, source: str, dest: str | Path, *, service: str | None = None) -> None:
        """`Box.download`."""
        portal.run(self.raw.download(source, Path(dest), service=service))

    def visible_path(self, path: str) -> str:
        """`Box.visible_path`."""
        return self.raw.visible_path(path)

    def host_path(self, path: str) -> Path | None:
        """`Box.host_path`."""
        return self.raw.host_path(path)

    def handle(self) -> dict[str, Any]:
        """`Box.handle`."""
        return self.raw.handle()

    def stop(self, *, delete: bool = True) -> None:
        """`Box.stop`."""
        portal.run(self.raw.stop(delete=delete))
