"""A plugin with the kind ``copying``: docker boxes as on an engine that does not see this machine's files."""

from __future__ import annotations

from ageval_boxes.docker_box import DockerBox


class CopyingBox(DockerBox):
    """Files go in and out by archives."""

    kind = "copying"

    def _choose_user(self, engine) -> None:
        super()._choose_user(engine)
        self._shared = False


def pytest_ageval_box_kinds() -> dict[str, type[DockerBox]]:
    return {"copying": CopyingBox}
