"""The same work by the bare calls of the Docker SDK and by a docker box; how long both take, in turns."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.engine_log import engine_log

from ageval_boxes.docker_box import DockerBox
from pytest_ageval.box import WORKSPACE, BoxSpec

IMAGE = "ageval-attempt:base"
FILE = b"x" * 10_000
COMMANDS = (["cat", "src/file"], ["sh", "-c", "echo hello; echo trouble >&2; exit 3"])


class CopyingBox(DockerBox):
    """A box that shares no files with the host."""

    def _choose_user(self, engine: Any) -> None:
        super()._choose_user(engine)
        self._shared = False


#: Each with the files of the host, with files that are copied, and with the image's own layout.
BOXES: dict[str, tuple[type[DockerBox], dict[str, Any]]] = {
    "shared": (DockerBox, {}),
    "copied": (CopyingBox, {}),
    "image": (DockerBox, {"layout": "image", "image": IMAGE}),
}


def bare(api: Any) -> None:
    """The engine's calls and nothing else, on the engine's own network."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        row = tarfile.TarInfo("src/file")
        row.size = len(FILE)
        tar.addfile(row, io.BytesIO(FILE))
    host = api.create_host_config(init=True)
    made = api.create_container(IMAGE, ["sleep", "1000000"], host_config=host, working_dir="/srv")["Id"]
    try:
        api.start(made)
        api.put_archive(made, "/srv", archive.getvalue())
        codes = []
        for words in COMMANDS:
            started = api.exec_create(made, words)["Id"]
            api.exec_start(started, demux=True)
            codes.append(api.exec_inspect(started)["ExitCode"])
        assert codes == [0, 3], codes
        with tarfile.open(fileobj=io.BytesIO(b"".join(api.get_archive(made, "/srv/src")[0]))) as tar:
            assert "src/file" in tar.getnames()
    finally:
        api.remove_container(made, v=True, force=True)


async def boxed(name: str, directory: Path, number: int) -> None:
    """The same by a box of `BOXES`."""
    kind, options = BOXES[name]
    source, dest = directory / "src", directory / "out"
    source.mkdir(exist_ok=True)
    (source / "file").write_bytes(FILE)
    labels = {"ageval.run": f"pairs-{os.getpid()}"}
    work = directory / f"{name}-{number}"
    box = kind(BoxSpec("docker", f"pair-{number}", "t", work, options=options, labels=labels))
    try:
        await box.start()
        await box.upload(source, f"{WORKSPACE}/src")
        done = [await box.exec(words) for words in COMMANDS]
        assert [row.exit_code for row in done] == [0, 3], done
        await box.download(f"{WORKSPACE}/src", dest)
        assert (dest / "file").read_bytes() == FILE
    finally:
        await box.stop()


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def pairs(name: str, times: int) -> list[tuple[float, float]]:
    """Seconds of the bare calls and of the box, `times` pairs; one more, the first, does not count.

    Neither is always the one that comes first.
    """
    import docker

    api = docker.APIClient(version="auto", **docker.utils.kwargs_from_env())
    found = []
    with tempfile.TemporaryDirectory(prefix="agb-") as directory, asyncio.Runner() as runner:
        for number in range(times + 1):

            def box(number: int = number) -> None:
                runner.run(boxed(name, Path(directory), number))

            if number % 2:
                pair = timed(lambda: bare(api)), timed(box)
            else:
                pair = tuple(reversed((timed(box), timed(lambda: bare(api)))))
            found.append(pair)
    api.close()
    return found[1:]


def requests(name: str) -> list[str]:
    """What the second box of a process asks the engine for; questions for an exit code only once each."""
    with tempfile.TemporaryDirectory(prefix="agb-") as directory, engine_log(Path(directory)) as log:
        given = os.environ.get("DOCKER_HOST")
        os.environ["DOCKER_HOST"] = log.host
        try:
            with asyncio.Runner() as runner:
                runner.run(boxed(name, Path(directory), 0))
                log.requests.clear()
                runner.run(boxed(name, Path(directory), 1))
        finally:
            os.environ.pop("DOCKER_HOST")
            if given is not None:
                os.environ["DOCKER_HOST"] = given
        asked = "GET /exec/ID/json"
        rows = ["", *log.plain]
        return [row for before, row in itertools.pairwise(rows) if row != asked or before != asked]
