"""What the docker box adds to the engine's own calls, and what a whole attempt in a container costs.

    python -m benchmarks.docker_box --pairs 15 --attempts 20

First pairs, one after the other: the bare calls of the Docker SDK (create, start, copy in, two commands with
their output and exit code, copy out, remove by force), and a box that is opened, does the same and is
closed.
The figure is the median of the pairs' ratios, so that what else the machine does is in both. Three boxes:

    shared   /attempt is a directory of the host: copies do not go through the engine
    copied   as with an engine that does not see this machine's files
    image    the image's own user and working directory, as Harbor's tasks have it; copied too

Then trivial tasks through pytest, one after the other, with ``--in-flight 8`` and with ``-n 4``.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ageval_boxes.docker_box import DockerBox
from benchmarks.datasets import make
from benchmarks.measure import run
from pytest_ageval.box import WORKSPACE, BoxSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.engine_log import engine_log

IMAGE = "ageval-attempt:base"
FILE = b"x" * 10_000
COMMANDS = (["cat", "src/file"], ["sh", "-c", "echo hello; echo trouble >&2; exit 3"])
ROWS = ((), ("--in-flight", "8"), ("-n", "4"))


class CopyingBox(DockerBox):
    """A box that shares no files with the host."""

    def _choose_user(self, engine: Any) -> None:
        super()._choose_user(engine)
        self._shared = False


BOXES: dict[str, tuple[type[DockerBox], dict[str, Any]]] = {
    "shared": (DockerBox, {}),
    "copied": (CopyingBox, {}),
    "image": (DockerBox, {"layout": "image", "image": IMAGE}),
}


def bare(api: Any, network: str = "bridge") -> None:
    """The engine's calls and nothing else."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        row = tarfile.TarInfo("src/file")
        row.size = len(FILE)
        tar.addfile(row, io.BytesIO(FILE))
    host = api.create_host_config(init=True, network_mode=network)
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
    """The same by a box."""
    kind, options = BOXES[name]
    source, dest = directory / "src", directory / "out"
    source.mkdir(exist_ok=True)
    (source / "file").write_bytes(FILE)
    labels = {"ageval.run": f"benchmark-{os.getpid()}"}
    work = directory / f"{name}-{number}"
    box = kind(BoxSpec("docker", f"bench-{number}", "t", work, options=options, labels=labels))
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


def pairs(api: Any, name: str, times: int) -> tuple[list[float], list[float]]:
    """Seconds of the bare calls and of the box, in turns; the first of both does not count."""
    bares, boxes = [], []
    with tempfile.TemporaryDirectory(prefix="agb-") as directory, asyncio.Runner() as runner:

        def box(number: int) -> Awaitable[None]:
            return boxed(name, Path(directory), number)

        for number in range(times + 1):
            # Neither is always the one that finds the machine as the other has left it.
            first = number % 2 == 0
            before = timed(lambda: bare(api)) if first else 0.0
            boxes.append(timed(lambda number=number: runner.run(box(number))))
            bares.append(before or timed(lambda: bare(api)))
    return bares[1:], boxes[1:]


def requests(name: str) -> list[str]:
    """What the second box of a process asks the engine for."""
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
        return log.plain


def attempts(number: int, times: int) -> None:
    """Print what an attempt costs through pytest."""
    print(f"\n{f'{number} attempts':22}{'wall s':>8}{'CPU s':>8}{'peak MB':>9}   an attempt: wall s, CPU s")
    with tempfile.TemporaryDirectory(prefix="agb-") as scratch:
        root = make(Path(scratch, "tasks"), number)
        for words in ROWS:
            argv = [sys.executable, "-m", "pytest", str(root), "-q", "-p", "no:cacheprovider"]
            argv += ["--box", "docker", *words]
            costs = [run(argv, cwd=Path(scratch)) for _ in range(times)]
            wall, cpu = (statistics.median(getattr(c, key) for c in costs) for key in ("wall", "cpu"))
            peak = max(cost.peak_mb for cost in costs)
            each = f"{wall / number:8.3f}{cpu / number:8.3f}"
            print(f"{' '.join(words) or 'one at a time':22}{wall:8.1f}{cpu:8.1f}{peak:9.0f}   {each}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15, help="of bare calls and a box, for each kind of box")
    parser.add_argument("--attempts", type=int, default=20, help="of a run of pytest; 0: none")
    parser.add_argument("--times", type=int, default=1, help="runs of pytest, of which the median is shown")
    parser.add_argument("--requests", action="store_true", help="list what a box asks the engine for")
    options = parser.parse_args()
    import docker

    api = docker.APIClient(version="auto", **docker.utils.kwargs_from_env())
    print(f"{'box':10}{'bare ms':>9}{'box ms':>9}{'ratio':>8}{'worst':>8}{'requests':>10}")
    for name in BOXES:
        asked = requests(name)
        bares, boxes = pairs(api, name, options.pairs)
        ratios = [mine / theirs for mine, theirs in zip(boxes, bares, strict=True)]
        medians = f"{statistics.median(bares) * 1000:9.0f}{statistics.median(boxes) * 1000:9.0f}"
        print(f"{name:10}{medians}{statistics.median(ratios):8.2f}{max(ratios):8.2f}{len(asked):10}")
        if options.requests:
            print(*(f"    {row}" for row in asked), sep="\n")
    if options.attempts:
        attempts(options.attempts, options.times)


if __name__ == "__main__":
    main()
