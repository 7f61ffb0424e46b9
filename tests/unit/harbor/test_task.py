"""What a task.toml becomes, and what is refused in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ageval.config.harbor import load_harbor_task
from pytest_ageval.config.harbor.box import agent_options, verifier_options
from pytest_ageval.config.harbor.toml import line_of
from pytest_ageval.config.harbor.variables import required_variables
from pytest_ageval.errors import ConfigError


@pytest.fixture
def write(tmp_path: Path):
    """Writes a task; the path of its directory."""

    def make(toml: str = "", *, instruction: str | None = "Do it.\n", **files: str) -> Path:
        root = tmp_path / "a-task"
        (root / "environment").mkdir(parents=True, exist_ok=True)
        (root / "environment" / "Dockerfile").write_text("FROM x\n")
        (root / "task.toml").write_text(toml)
        if instruction is not None:
            (root / "instruction.md").write_text(instruction)
        for name, text in files.items():
            path = root / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    return make


def test_defaults(write) -> None:
    task = load_harbor_task(write())
    assert task.task_id == "a-task"
    assert task.roles == ("agent",)
    assert (task.limits.wall_time_seconds, task.limits.evaluate_seconds) == (0, 600)
    harbor = task.harbor
    assert harbor is not None
    assert harbor.steps[0].instruction == "Do it.\n"
    assert not harbor.steps[0].verifier.separate
    assert agent_options(harbor, task.root) == {
        "layout": "image",
        "dockerfile": "environment/Dockerfile",
        "build_context": "environment",
    }


def test_everything_of_a_terminal_bench_task(write) -> None:
    task = load_harbor_task(
        write(
            """
version = "1.0"
[metadata]
author_name = "A"
difficulty = "hard"
category = "system-administration"
tags = ["git", "web"]
expert_time_estimate_min = 5.0
[verifier]
timeout_sec = 900.0
[agent]
timeout_sec = 900.5
[environment]
build_timeout_sec = 600.0
docker_image = "example/task:20251031"
cpus = 2
memory = "4G"
storage = "10G"
gpus = 0
"""
        )
    )
    assert task.tags == ("git", "web", "system-administration", "hard")
    assert dict(task.parameters) == {"cpus": 2.0, "memory_mb": 4096, "storage_mb": 10240}
    assert (task.limits.wall_time_seconds, task.limits.evaluate_seconds) == (901, 900)
    assert task.harbor is not None
    assert agent_options(task.harbor, task.root)["image"] == "example/task:20251031"


def test_the_name_may_be_a_package_and_the_id_is_the_directory(write) -> None:
    task = load_harbor_task(write('[task]\nname = "org/another-name"\nkeywords = ["x"]\n'))
    assert (task.task_id, task.tags) == ("a-task", ("x",))
    assert task.harbor is not None
    assert task.harbor.package == "org/another-name"


def test_the_instruction_is_given_as_it_is(write) -> None:
    text = "runs-on: ${{ matrix.os }}; {{7*7}}; %(x)s $HOME\n\u200b\ttab \n\nend"
    task = load_harbor_task(write(instruction=f"<!-- a canary GUID 1 -->\n# canary: 2\n\n{text}"))
    assert task.harbor is not None
    assert task.harbor.steps[0].instruction == text
    whole = "# Heading\ntext\n"
    assert load_harbor_task(write(instruction=whole)).harbor.steps[0].instruction == whole  # type: ignore[union-attr]


def test_variables_of_the_host(write) -> None:
    task = load_harbor_task(
        write(
            '[environment.env]\nA = "${FROM_HOST}"\nB = "${OTHER:-b}"\nC = "plain"\n'
            '[verifier.env]\nKEY = "${JUDGE_KEY}"\n',
            **{"environment__docker-compose.yaml": "services: {main: {environment: {D: 1, E: true}}}\n"},
        )
    )
    assert task.harbor is not None
    assert dict(task.harbor.env) == {
        "A": "${FROM_HOST}",
        "B": "${OTHER:-b}",
        "C": "plain",
        "D": "1",
        "E": "true",
    }
    assert dict(required_variables(task.harbor)) == {
        "environment.env.A": "FROM_HOST",
        "verifier.env.KEY": "JUDGE_KEY",
    }
    assert "compose" in task.requires


def test_several_steps_take_what_they_leave_out_from_the_task(write) -> None:
    root = write(
        """
artifacts = ["/app/a"]
[agent]
timeout_sec = 10
[verifier]
timeout_sec = 20
env = {A = "1", B = "1"}
[environment]
[[steps]]
name = "one"
min_reward = 0.5
[[steps]]
name = "two"
agent = {timeout_sec = 5}
verifier = {env = {B = "2"}}
artifacts = [{source = "/app/b", exclude = ["*.pyc"]}]
""",
        instruction=None,
        **{
            "steps__one__instruction.md": "first",
            "steps__two__instruction.md": "second",
            "steps__two__tests__test.sh": "",
        },
    )
    task = load_harbor_task(root)
    assert task.harbor is not None
    one, two = task.harbor.steps
    assert (one.agent_timeout_sec, two.agent_timeout_sec) == (10, 5)
    assert (one.verifier.timeout_sec, two.verifier.timeout_sec) == (20, 20)
    assert dict(two.verifier.env) == {"A": "1", "B": "2"}
    assert (one.verifier.tests, two.verifier.tests) == ("tests", "steps/two/tests")
    assert [a.source for a in two.artifacts] == ["/app/a", "/app/b"]
    assert (task.limits.wall_time_seconds, task.limits.agent_invocations) == (15, 2)


def test_where_a_separate_verifier_gets_its_image_from(write) -> None:
    separate = '[verifier]\nenvironment_mode = "separate"\n'
    task = load_harbor_task(write(separate)).harbor
    assert task is not None
    root = write(separate)
    own = task.steps[0].verifier
    assert verifier_options(task, own, root)["dockerfile"] == "environment/Dockerfile"
    assert not own.bundled
    root = write(separate + " ", tests__Dockerfile="FROM y\n")
    recipe = load_harbor_task(root).harbor.steps[0].verifier  # type: ignore[union-attr]
    assert recipe.bundled
    assert verifier_options(task, recipe, root)["dockerfile"] == "tests/Dockerfile"
    root = write('[verifier.environment]\ndocker_image = "z"\nnetwork_mode = "no-network"\ncpus = 2\n')
    image = load_harbor_task(root).harbor.steps[0].verifier  # type: ignore[union-attr]
    found = verifier_options(task, image, root)
    assert (found["image"], found["network"], dict(image.resources)) == ("z", "none", {"cpus": 2.0})


def test_networks(write) -> None:
    none = load_harbor_task(write("[environment]\nallow_internet = false\n"))
    assert none.harbor is not None
    assert agent_options(none.harbor, none.root)["network"] == "none"
    some = load_harbor_task(write('[environment]\nallowed_hosts = ["a.example", "*.b.example"]\n'))
    assert some.harbor is not None
    options = agent_options(some.harbor, some.root)
    assert (options["egress"], options["egress_allow"]) == ("llm", ["a.example", "*.b.example"])


def test_networks_of_phases(write) -> None:
    task = load_harbor_task(
        write(
            '[environment]\nallowed_hosts = ["A.example.", "10.0.0.0/8"]\n'
            '[agent]\nnetwork_mode = "no-network"\n'
            '[verifier]\nnetwork_mode = "public"\n'
        )
    )
    assert task.harbor is not None
    assert agent_options(task.harbor, task.root) | {"dockerfile": "", "build_context": ""} == {
        "layout": "image",
        "dockerfile": "",
        "build_context": "",
        "egress": "llm",
        "egress_allow": ["a.example", "10.0.0.0/8"],
        "network_phases": ["allowlist", "no-network", "public"],
    }
    # An agent in the box reaches its model, through the proxy.
    calling = agent_options(task.harbor, task.root, calls_model=True)
    assert calling["network_phases"] == ["allowlist", "public"]
    same = load_harbor_task(
        write('[environment]\nnetwork_mode = "no-network"\n[agent]\nnetwork_mode = "no-network"\n')
    )
    assert same.harbor is not None
    assert "network_phases" not in agent_options(same.harbor, same.root)


def test_a_separate_verifier_has_the_network_that_it_says(write) -> None:
    closed = '[environment]\nnetwork_mode = "no-network"\n'
    rows = {
        closed + '[verifier]\nenvironment_mode = "separate"\n': {"network": "none"},
        closed + '[verifier.environment]\ncpus = 1\n': {},
        '[verifier.environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a"]\n': {
            "egress": "llm", "egress_allow": ["a"],
        },
        '[verifier]\nnetwork_mode = "no-network"\n[verifier.environment]\nworkdir = "/w"\n': {
            "network": "none", "workdir": "/w",
        },
    }  # fmt: skip
    for toml, expected in rows.items():
        root = write(toml)
        task = load_harbor_task(root).harbor
        assert task is not None
        found = verifier_options(task, task.steps[0].verifier, root)
        assert {
            k: v for k, v in found.items() if k in ("network", "egress", "egress_allow", "workdir")
        } == expected
        assert "network_phases" not in agent_options(task, root)


def test_main_becomes_options_of_the_box(write) -> None:
    compose = """
    services:
      main:
        build: {dockerfile: Dockerfile}
        command: ["sh", "-c", "sleep infinity"]
        user: 1000
        working_dir: /w
        platform: linux/arm64
        environment: {A: "${B:-c}"}
      side: {image: "${IMAGE:-x}", environment: {K: "${KEY}"}}
    """
    root = write(**{"environment__docker-compose.yaml": compose})
    task = load_harbor_task(root).harbor
    assert task is not None
    options = agent_options(task, root)
    assert {name: options[name] for name in ("user", "workdir", "platform")} == {
        "user": "1000",
        "workdir": "/w",
        "platform": "linux/arm64",
    }
    assert dict(task.env) == {"A": "${B:-c}"}
    assert dict(task.compose_variables) == {"B": False, "IMAGE": False, "KEY": True}


@pytest.mark.parametrize(
    ("toml", "title", "line", "words"),
    [
        ("[agent]\ntimeout_seconds = 5\n", "invalid_schema", 2, "did you mean 'timeout_sec'"),
        ("[verifier]\n\ncommand = 'x'\n", "invalid_schema", 3, "command"),
        ("[task]\nname = 'no-org'\n", "invalid_schema", 2, "name"),
        ("x = \n", "invalid_toml", 1, "Invalid value"),
        ("[environment]\nos = 'windows'\n", "harbor_unsupported", 2, "Linux"),
        ("[environment]\ntpu = {type = 'v4'}\n", "harbor_unsupported", 2, "tpu"),
        ("[environment]\nskills_dir = 's'\n", "invalid_schema", 2, "absolute"),
        ("[verifier.environment]\nskills_dir = '/s'\n", "harbor_unsupported", 2, "no agent works"),
        ("[environment]\nmemory = 'lots'\n", "invalid_schema", 2, "2G"),
        ("[environment]\nmemory = '1G'\nmemory_mb = 1\n", "invalid_schema", 2, "differ"),
        ("[environment]\nnetwork_mode = 'allowlist'\n", "invalid_schema", 2, "allowed_hosts"),
        ("[environment]\nallowed_hosts = ['10.0.0.1/8']\n", "invalid_schema", 2, "host bits set"),
        ("[environment]\nallowed_hosts = ['a.example:80']\n", "invalid_schema", 2, "without a port"),
        ("[agent]\nallowed_hosts = ['https://a']\n", "invalid_schema", 2, "does not appear to be"),
        ("[agent]\nnetwork_mode = 'allowlist'\n", "invalid_schema", 2, "needs allowed_hosts"),
        ("[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]\n", "invalid_schema", 2, "shared"),
        ("[[steps]]\nname = 'a'\n", "missing_reference", 2, "steps/a"),
        ("artifacts = ['../x']\n", "path_outside_package", 1, "'..'"),
        ("artifacts = [{source = '/x', destination = 'manifest.json'}]\n",
         "path_outside_package", 1, "manifest"),
    ],
)  # fmt: skip
def test_what_is_refused(write, toml: str, title: str, line: int, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_harbor_task(write(toml))
    assert (error.value.code, error.value.line) == (title, line)
    assert words in str(error.value)


def test_unknown_keys_can_be_notes(write) -> None:
    task = load_harbor_task(write("[agent]\nretries = 5\n[environment]\nshm = 1\n"), strict=False)
    assert len(task.notes) == 2
    assert "unknown key 'retries'" in task.notes[0]


@pytest.mark.parametrize(
    ("compose", "words"),
    [
        ("services: {main: {privileged: true}}", "services.main.privileged"),
        ("services: {main: {build: {context: ../elsewhere}}}", "built from environment/"),
        ("services: {main: {environment: ['A=b$C']}}", "not expanded"),
        ("services: {main: {command: [python3, server.py]}}", "more than keep the container open"),
        ("services: {main: {entrypoint: /start}}", "services.main.entrypoint: the box keeps"),
        ("services: {main: {image: 'a:$TAG'}}", "a variable is not expanded"),
        ("services: {main: {secrets: [a]}}", "services.main.secrets: the box does not do it"),
        ("[]", "services"),
    ],
)
def test_what_main_may_not_ask_for(write, compose: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_harbor_task(write(**{"environment__docker-compose.yaml": compose}))


def test_what_is_missing(write) -> None:
    with pytest.raises(ConfigError, match=r"instruction\.md is missing"):
        load_harbor_task(write(instruction=None))
    root = write()
    (root / "environment" / "Dockerfile").unlink()
    (root / "environment").rmdir()
    with pytest.raises(ConfigError, match="neither a directory environment/"):
        load_harbor_task(root)


def test_lines() -> None:
    text = 'a = 1\n[b]\nc = 2\n"d e" = 3\n[[steps]]\nname = "x"\n'
    text += '[steps.agent]\nuser = 1\n[[steps]]\nname = "y"\n'
    places = {
        "/a": 1,
        "/b": 2,
        "/b/c": 3,
        "/b/d e": 4,
        "/steps/0/name": 6,
        "/steps/0/agent/user": 8,
        "/steps/1/name": 10,
    }
    assert {pointer: line_of(text, pointer) for pointer in places} == places
    assert line_of(text, "/steps/1/verifier/x") == 9
    assert line_of(text, "/nothing") is None


def test_mcp_servers(write) -> None:
    task = load_harbor_task(
        write(
            '[[environment.mcp_servers]]\nname = "files"\ntransport = "stdio"\n'
            'command = "mcp-files"\nargs = ["/app"]\n'
            '[[environment.mcp_servers]]\nname = "web"\nurl = "http://web:8080/sse"\n'
            'headers = {A = "${KEY}"}\n'
        )
    )
    files, web = task.mcp_servers
    assert (files.name, files.transport, files.command, files.args) == (
        "files",
        "stdio",
        "mcp-files",
        ["/app"],
    )
    assert (web.transport, web.url, web.headers) == ("sse", "http://web:8080/sse", {"A": "${KEY}"})
