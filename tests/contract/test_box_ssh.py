"""The ssh box holds the box contract, against a real sshd with its default limits."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("pytest_ageval.testing.box_contract")
pytest.importorskip("paramiko")

from support.sshd import MISSING, sshd  # noqa: E402

from ageval_boxes.ssh import SshBox  # noqa: E402
from pytest_ageval.testing.box_contract import BoxContract  # noqa: E402

pytestmark = [pytest.mark.ssh, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


#: Where .ci/services-docker has run.
IMAGE = "ageval-attempt:base"


def has_image() -> bool:
    if shutil.which("docker") is None:
        return False
    command = ["docker", "image", "inspect", IMAGE]
    return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, sshd(tmp_path_factory.mktemp("sshd")) as running:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        TestSsh.options = running.options
        TestSsh.broken_options = {**running.options, "port": 1}
        TestContainer.options = {**running.options, "image": IMAGE}
        TestContainer.broken_options = {**running.options, "image": "localhost:1/no/such:image"}
        yield
        assert running.roots() == []


class TestSsh(BoxContract):
    box_class = SshBox
    # The host of these tests is this machine.
    isolated = False


@pytest.mark.docker
@pytest.mark.skipif(not has_image(), reason=f"needs a docker engine with the image {IMAGE}")
class TestContainer(BoxContract):
    box_class = SshBox
