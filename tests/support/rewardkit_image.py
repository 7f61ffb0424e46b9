"""An image with ``harbor-rewardkit`` and a Python that is new enough for it, on top of the base image.

Made once for an engine: the tag names the versions that are in it. The Python is this machine's own, copied:
the base image has an older one, and no other is to be had without a registry of images.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from docker_engine import BASE

REWARDKIT = "harbor-rewardkit==0.2.3"
#: The oldest that it runs on.
NEEDED = (3, 12)
_LEFT_OUT = ("test", "tests", "site-packages", "__pycache__", "ensurepip", "idlelib", "tkinter", "config-*")
_RECIPE = f"""FROM {BASE}
USER root
COPY python /opt/python
COPY rewardkit /opt/rewardkit
COPY libraries.conf /etc/ld.so.conf.d/rewardkit.conf
COPY rewardkit.sh /usr/local/bin/rewardkit
# The second makes what the first import compiles part of the image.
RUN ldconfig && chmod 755 /usr/local/bin/rewardkit && rewardkit --help >/dev/null
WORKDIR /app
"""
#: The price map of models is the one that the package ships; it would be fetched at every start.
_START = """#!/bin/sh
LITELLM_LOCAL_MODEL_COST_MAP=True PYTHONPATH=/opt/rewardkit exec /opt/python/bin/python3 -m rewardkit "$@"
"""


def python() -> Path | None:
    """The prefix of a Python of this machine that is new enough."""
    found = [sys.base_prefix] if sys.version_info >= NEEDED else []
    home = Path.home() / ".pyenv" / "versions"
    found += [str(path) for minor in (12, 13, 14) for path in sorted(home.glob(f"3.{minor}.*"))]
    return next((Path(path) for path in found if (Path(path) / "bin" / "python3").exists()), None)


def image() -> str:
    """The tag; built if it is not there."""
    prefix = python()
    assert prefix is not None
    version = subprocess.run(
        [prefix / "bin" / "python3", "-c", "import platform; print(platform.python_version())"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    base = _docker("image", "inspect", BASE, "--format", "{{json .Id}}")
    tag = f"ageval-test:rewardkit-{REWARDKIT.partition('==')[2]}-py{version}-{json.loads(base)[7:19]}"
    with open(Path(tempfile.gettempdir()) / "ageval-test-rewardkit.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if subprocess.run(["docker", "image", "inspect", tag], capture_output=True).returncode != 0:
            with tempfile.TemporaryDirectory() as folder:
                _build(prefix, Path(folder), tag)
    return tag


def _build(prefix: Path, context: Path, tag: str) -> None:
    shutil.copytree(
        prefix / "lib", context / "python" / "lib",
        symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT),
    )  # fmt: skip
    (context / "python" / "bin").mkdir()
    shutil.copy(prefix / "bin" / "python3", context / "python" / "bin" / "python3")
    install = ["-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    subprocess.run(
        [prefix / "bin" / "python3", *install, "--target", context / "rewardkit", REWARDKIT],
        check=True, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    (context / "libraries.conf").write_text("/opt/python/lib\n")
    (context / "rewardkit.sh").write_text(_START)
    (context / "Dockerfile").write_text(_RECIPE)
    _docker("build", "--quiet", "-t", tag, str(context))


def _docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
