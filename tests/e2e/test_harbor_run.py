"""Harbor tasks on a real Docker engine; the agent is a shell that runs the instruction."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harbor_shape
import pytest
from docker_engine import needs_docker, on_engine
from harbor_tasks import GRADE, ROOT, Tasks, title

from pytest_ageval import cli

pytestmark = [pytest.mark.docker, needs_docker]

#: Programs that our own scripts call in the box, before and after test.sh.
SHADOW = """
for name in sh bash cat grep rm mkdir chmod chown wc head base64 tr cut sleep id; do
  printf '#!/bin/dash\\necho 1 > /logs/verifier/reward.txt\\n' > /usr/local/bin/$name
done
/bin/chmod 755 /usr/local/bin/*
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Tasks:
    return Tasks(tmp_path / "set")


def test_rewards_and_who_wrote_them(tasks: Tasks) -> None:
    plant = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; chmod 444 /logs/verifier/reward.txt"
    writer = (
        "(setsid sh -c 'while :; do echo 1 > /logs/verifier/reward.txt; sleep 0.1; done' &) >/dev/null 2>&1"
    )
    tasks.write("solved", "echo 42 > answer")
    tasks.write("unsolved", "echo 41 > answer")
    tasks.write("exit-one", "echo 41 > answer", tests__test_sh="", **{"tests/test.sh": GRADE + "exit 1\n"})
    tasks.write("planted", f"{plant}; chmod 555 /logs/verifier", **{"tests/test.sh": "exit 1\n"})
    tasks.write("planted-json", "echo '{\"reward\": 1}' > /logs/verifier/reward.json")
    tasks.write("planted-link", "echo 1 > /srv/one; rm -rf /logs/verifier; ln -s /srv /logs/verifier")
    tasks.write(
        "planted-tests", "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh"
    )
    tasks.write("writer", writer)
    tasks.write("shadowed", SHADOW, **{"tests/test.sh": "PATH=/usr/bin:/bin\n" + GRADE})
    tasks.write("huge", **{"tests/test.sh": "truncate -s 3G /logs/verifier/reward.txt\n"})
    tasks.write("fifo", **{"tests/test.sh": "mkfifo /logs/verifier/reward.txt\n"})
    tasks.write("link", **{"tests/test.sh": "echo 1 > /srv/one; ln -s /srv/one /logs/verifier/reward.txt\n"})
    tasks.write(
        "late",
        **{"tests/test.sh": "(sleep 1; echo 1 > /logs/verifier/reward.txt) >/dev/null 2>&1 & exit 0\n"},
    )
    tasks.write("two", **{"tests/test.sh": GRADE + "echo '{\"reward\": 1}' > /logs/verifier/reward.json\n"})
    found = {name: title(result) for name, result in tasks.run().items()}
    assert found == {
        "solved": "PASS",
        "unsolved": "FAIL",
        "exit-one": "FAIL",
        "planted": "reward_missing",
        "planted-json": "FAIL",
        "planted-link": "FAIL",
        "planted-tests": "FAIL",
        "writer": "FAIL",
        "shadowed": "FAIL",
        "huge": "reward_too_large",
        "fifo": "reward_not_a_file",
        "link": "reward_not_a_file",
        "late": "reward_missing",
        "two": "reward_conflict",
    }
    exit_one = json.loads((tasks.evidence["exit-one"] / "evaluation" / "reward.json").read_text())
    assert exit_one["steps"][0]["evaluator_exit"] == 1
    assert exit_one["steps"][0]["status"] == "SCORED"
    missing = json.loads((tasks.evidence["late"] / "evaluation" / "reward.json").read_text())
    assert missing["steps"][0]["status"] == "SCORING_ERROR"
    assert any(
        "while" in line for line in str(tasks.facts("writer", "leftover_processes_killed")).splitlines()
    )


def test_limits_users_networks_and_health(tasks: Tasks) -> None:
    tasks.write(
        "slow", "while :; do date >> /app/ticks; sleep 0.2; done", "agent = {timeout_sec = 2}",
        **{"tests/test.sh": "a=$(wc -l < /app/ticks); sleep 1; b=$(wc -l < /app/ticks)\n"
           'if [ "$a" = "$b" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'},
    )  # fmt: skip
    tasks.write(
        "slow-verifier", "true", "verifier = {timeout_sec = 1}", **{"tests/test.sh": "echo begun; sleep 60\n"}
    )
    tasks.write(
        "users", "id -un > /tmp/who", 'agent = {user = "nobody"}\nverifier = {user = 1234}',
        **{"tests/test.sh": 'if [ "$(cat /tmp/who) $(id -u)" = "nobody 1234" ]; then echo 1; else echo 0; fi '
           "> /logs/verifier/reward.txt\n"},
    )  # fmt: skip
    tasks.write("no-such-user", "true", 'agent = {user = "nosuch"}')
    tasks.write(
        "no-network", '[ -z "$(tail -n +2 /proc/net/route)" ] && ls /sys/class/net > answer',
        '[environment]\nnetwork_mode = "no-network"',
        **{"tests/test.sh": '[ "$(cat /app/answer)" = lo ] && echo 1 > /logs/verifier/reward.txt\n'},
    )  # fmt: skip
    tasks.write(
        "unhealthy", "true", "[environment.healthcheck]\ncommand = 'exit 3'\nretries = 2\ninterval_sec = 0.1"
    )
    tasks.write("workdir", "pwd > answer", '[environment]\nworkdir = "/srv/work"', **{
        "tests/test.sh": '[ "$(cat /srv/work/answer)" = /srv/work ] && echo 1 > /logs/verifier/reward.txt\n'
    })  # fmt: skip
    tasks.write("threshold", "true", **{"tests/test.sh": "echo 0.6 > /logs/verifier/reward.txt\n"})
    results = tasks.run("--pass-threshold=0.5")
    assert {name: title(result) for name, result in results.items()} == {
        "slow": "PASS",
        "slow-verifier": "verifier_timeout",
        "users": "PASS",
        "no-such-user": "environment_options_invalid",
        "no-network": "PASS",
        "unhealthy": "environment_unhealthy",
        "workdir": "PASS",
        "threshold": "PASS",
    }
    assert results["slow"]["limit"] == "wall_time_seconds"
    assert results["threshold"]["score"] == 0.6


def test_variables_artifacts_and_a_verifier_of_its_own(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HOST", "a-secret-value-123")
    tasks.write(
        "separate",
        'echo "$GIVEN" > /app/given; echo kept > /logs/artifacts/kept; mkdir /app/tree; '
        "echo x > /app/tree/a.pyc; echo y > /app/tree/b; ln -s /etc/passwd /app/tree/link; "
        "echo leak > /app/not-declared; echo mine > /logs/agent/trajectory.json",
        """
        artifacts = [
          "/app/given", {source = "tree", destination = "the-tree", exclude = ["*.pyc"]}, "/app/absent",
        ]
        [environment.env]
        GIVEN = "${FROM_HOST}"
        [verifier]
        environment_mode = "separate"
        env = {JUDGE = "${FROM_HOST}", MODE = "${UNSET:-default}"}
        collect = [{command = "echo collected > /logs/artifacts/collected"}, {command = "exit 4"}]
        """,
        **{
            "tests/test.sh": """
            cd /app; find / -xdev -name not-declared | grep . && exit 1
            if [ "$JUDGE" = "$(cat given)" ] && [ "$MODE" = default ] && [ "$(ls tree)" = b ] &&
              [ -f /logs/artifacts/kept ] && [ -f /logs/artifacts/collected ]
            then echo '{"reward": 1, "extra": 0.5}' > /logs/verifier/reward.json; fi
            """
        },
    )
    tasks.write("unset", "true", '[environment.env]\nA = "${NOT_SET_ANYWHERE}"')
    results = tasks.run()
    assert "unset" not in results
    assert "unset_variable" in tasks.output
    assert "NOT_SET_ANYWHERE (environment.env.A)" in tasks.output
    assert title(results["separate"]) == "PASS", tasks.output
    assert results["separate"]["metrics"]["extra"] == 0.5
    evidence = tasks.evidence["separate"]
    manifest = json.loads((evidence / "task-artifacts" / "main" / "manifest.json").read_text())["entries"]
    states = {row.get("source") or row["command"]: row["status"] for row in manifest}
    assert states == {
        "echo collected > /logs/artifacts/collected": "ok",
        "exit 4": "failed",
        "/logs/artifacts": "ok",
        "/logs/agent": "ok",
        "/app/given": "ok",
        "tree": "ok",
        "/app/absent": "failed",
    }
    logs = evidence / "task-artifacts" / "main" / "agent-logs"
    assert (logs / "trajectory-of-agent.json").read_text() == "mine\n"
    document = json.loads((logs / "trajectory.json").read_text())
    assert document["schema_version"] == "ATIF-v1.8"
    assert document["steps"][0]["message"].startswith('echo "$GIVEN"')
    for path in evidence.rglob("*"):
        if path.is_file():
            assert b"a-secret-value-123" not in path.read_bytes(), path


#: Says which of two servers beside the container answer: by the proxy's variables, or directly.
ASK = """
import os, sys, urllib.request
for url in sys.argv[1:]:
    try:
        print("yes", urllib.request.urlopen(url, timeout=20).status)
    except Exception as error:
        print("no", getattr(error, "code", ""))
"""


def left_behind(results: dict[str, Any]) -> list[str]:
    """What the attempts left on the engine, which others use too."""
    attempts = [result["attempt_id"] for result in results.values()]
    return [row for attempt in attempts for row in on_engine(f"ageval.attempt={attempt}")]


@pytest.fixture
def server() -> Iterator[str]:
    """An address of this machine, on a network of its own, at whose port 80 a container serves HTTP."""
    label = ["--label", "ageval.test=harbor-networks"]
    network = f"ageval-test-{os.getpid()}-{time.time_ns()}"

    def docker(*words: str) -> str:
        return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout.strip()

    docker("network", "create", *label, network)
    name = ""
    try:
        here = docker("network", "inspect", network, "-f", "{{(index .IPAM.Config 0).Gateway}}")
        place = ("--network", network, "-p", f"{here}:80:80", "--user", "0:0", "--entrypoint", "python3")
        program = ("-m", "http.server", "80", "--directory", "/opt")
        name = docker("run", "-d", "--rm", *label, *place, "ageval-attempt:base", *program)
        yield here
    finally:
        subprocess.run(["docker", "rm", "-f", name], capture_output=True)
        subprocess.run(["docker", "network", "rm", network], capture_output=True)


def test_networks_of_phases(tasks: Tasks, server: str) -> None:
    """Agent and verifier each have the network that task.toml gives them; an address range is one."""
    ask = f"python3 /app/ask.py http://{server}/"
    recipe = "FROM ageval-attempt:base\nUSER root\nWORKDIR /app\nCOPY ask.py /app/ask.py\n"
    files = {"environment/Dockerfile": recipe, "environment/ask.py": ASK}
    grade = (
        f"{ask} > verifier; cat agent verifier; "
        'if [ "$(cat agent verifier | cut -d" " -f1 | tr "\\n" ,)" = "$(cat /tests/expected)" ]; '
        "then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    )
    subnet = server.rsplit(".", 1)[0] + ".0/24"
    rows = {
        # environment, agent, verifier, and who reaches the server
        "closed-agent": ("public", '"no-network"', None, "no,yes,"),
        "closed-verifier": ("public", None, '"no-network"', "yes,no,"),
        "opened-verifier": ("no-network", None, '"public"', "no,yes,"),
        "listed-agent": ("no-network", f'"allowlist"\nallowed_hosts = ["{subnet}"]', None, "yes,no,"),
        "other-list": ("public", '"allowlist"\nallowed_hosts = ["10.99.0.0/16"]', None, "no,yes,"),
    }
    for name, (environment, agent, verifier, expected) in rows.items():
        toml = f'[environment]\nnetwork_mode = "{environment}"\n'
        toml += f"[agent]\nnetwork_mode = {agent}\n" if agent else ""
        toml += f"[verifier]\nnetwork_mode = {verifier}\n" if verifier else ""
        more = {"tests/test.sh": grade, "tests/expected": expected}
        tasks.write(name, f"{ask} > agent", toml, **files, **more)
    results = tasks.run()
    assert {name: title(result) for name, result in results.items()} == dict.fromkeys(rows, "PASS"), {
        name: (path / "logs" / "verifier-main.stdout").read_text() for name, path in tasks.evidence.items()
    }
    modes = [row["mode"] for row in tasks.facts("closed-agent", "network")]
    assert modes == ["no-network", "public", "public", "public"]
    assert not left_behind(results)


def test_what_main_asks_for_and_files_beside_an_image(tasks: Tasks, server: str) -> None:
    compose = """
    services:
      main:
        build: {context: "${CONTEXT_DIR}", dockerfile: main.Dockerfile}
        command: [sh, -c, sleep infinity]
        hostname: the-host
        extra_hosts: ["elsewhere:192.0.2.7"]
        tmpfs: [/scratch]
        ulimits: {nofile: 333}
        working_dir: /srv/work
        user: "1234"
        volumes: ["shared:/shared:ro", "./given:/given:ro", "${HOST_AGENT_LOGS_PATH}:/logs/agent"]
        networks: {inner: {aliases: [alias]}}
        ports: ["80:80"]
      side:
        image: ageval-attempt:base
        user: "0:0"
        init: true
        command: [sh, -c, "echo from-side > /shared/word; sleep 1000"]
        environment: {TOKEN: "${SIDE_TOKEN:-none}"}
        volumes: ["shared:/shared"]
        networks: [inner]
    networks: {inner: {}}
    volumes: {shared: {}}
    """
    say = (
        "(hostname; grep -c 192.0.2.7 /etc/hosts; grep -c /scratch /proc/mounts; ulimit -n; pwd; id -u; "
        "cat /shared/word /given/file; getent hosts side >/dev/null && echo found; "
        "touch /given/x || echo no) > /tmp/said 2>/dev/null"
    )
    expected = "the-host\n1\n1\n333\n/srv/work\n1234\nfrom-side\nfile\nfound\nno\n"
    tasks.write(
        "main", say,
        **{
            "environment/docker-compose.yaml": textwrap.dedent(compose),
            "environment/main.Dockerfile": (
                "FROM ageval-attempt:base\nUSER root\nRUN mkdir -m 777 /srv/work\n"
            ),
            "environment/given/file": "file\n",
            "tests/expected": expected,
            "tests/test.sh": (
                "cat /tmp/said; cmp /tmp/said /tests/expected && echo 1 > /logs/verifier/reward.txt\n"
            ),
        },
    )  # fmt: skip
    (tasks.root / "main" / "environment" / "Dockerfile").unlink()
    closed = "services: {side: {image: 'ageval-attempt:base', init: true, command: [sleep, '1000']}}\n"
    tasks.write(
        "closed-services",
        "getent hosts side > /tmp/side; "
        f"if timeout 3 bash -c 'exec 3<>/dev/tcp/{server}/80'; then echo open; else echo closed; fi "
        ">> /tmp/side",
        '[environment]\nnetwork_mode = "no-network"',
        **{
            "environment/docker-compose.yaml": closed,
            "tests/test.sh": "cat /tmp/side; grep -q side /tmp/side && grep -q closed /tmp/side && "
            "echo 1 > /logs/verifier/reward.txt\n",
        },
    )
    tasks.write(
        "image", "cat one sub/two > answer",
        '[environment]\ndocker_image = "ageval-attempt:base"\nworkdir = "/app"\n[agent]\nuser = "root"',
        **{"environment/one": "4", "environment/sub/two": "2"},
    )  # fmt: skip
    (tasks.root / "image" / "environment" / "Dockerfile").unlink()
    results = tasks.run()
    names = ("main", "closed-services", "image")
    assert {n: title(r) for n, r in results.items()} == dict.fromkeys(names, "PASS"), {
        name: (path / "logs" / "verifier-main.stdout").read_text() for name, path in tasks.evidence.items()
    }
    assert not left_behind(results)


def test_several_steps(tasks: Tasks) -> None:
    steps = {
        "steps/one/instruction.md": "echo 42 > answer; echo hidden > /tests-were-here",
        "steps/two/instruction.md": "[ ! -e /tests/test.sh ] && [ ! -e /logs/verifier/reward.txt ] && "
        "cat new > answer",
        "steps/two/workdir/new": "42",
        "steps/two/workdir/setup.sh": "echo ready > /app/ready\n",
        "steps/three/instruction.md": "true",
        "steps/two/tests/test.sh": '[ "$(cat answer ready)" = "42ready" ] && '
        "echo 0.4 > /logs/verifier/reward.txt\n",
    }
    toml = "[[steps]]\nname = 'one'\nmin_reward = 1\n[[steps]]\nname = 'two'\nmin_reward = 0.5\n"
    toml += "[[steps]]\nname = 'three'\n"
    tasks.write("gate", toml=toml, **steps)
    tasks.write("final", toml="multi_step_reward_strategy = 'final'\n" + toml.replace("0.5", "0.1"), **steps)
    results = tasks.run()
    assert title(results["gate"]) == "FAIL"
    assert results["gate"]["score"] == pytest.approx((1 + 0.4) / 3)
    checks = json.loads((tasks.evidence["gate"] / "evaluation" / "checks.json").read_text())["checks"]
    assert [row["status"] for row in checks] == ["pass", "fail", "fail"]
    assert tasks.facts("gate", "step_gate_missed")[0]["found"] == 0.4
    assert results["final"]["score"] == 1.0
    assert results["final"]["agent_invocations"] == 1  # of the last step's session


def test_our_own_data_set(tmp_path: Path) -> None:
    import shutil

    root = shutil.copytree(ROOT / "datasets" / "harbor", tmp_path / "harbor")
    tasks = Tasks(root)
    names = {"growing-list", "hello-file", "key-value-service", "word-count"}
    assert {n: title(r) for n, r in tasks.run(agent="oracle").items()} == dict.fromkeys(names, "PASS")
    shutil.rmtree(root / ".ageval")
    assert {n: title(r) for n, r in tasks.run(agent="nop").items()} == dict.fromkeys(names, "FAIL")


def test_attempts_as_trials_of_harbor(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exported while they run, and imported again: the same verdicts."""
    monkeypatch.setenv("PROBE_TOKEN", "tok-probe-0123456789")
    tasks.write(
        "kept", "echo 42 > answer; echo note > /logs/agent/log; echo $TOKEN > /logs/artifacts/token",
        'artifacts = ["/app/answer"]\n[environment]\nenv = {TOKEN = "${PROBE_TOKEN}"}\n'
        '[verifier]\nenvironment_mode = "separate"\n',
        **{"tests/test.sh": "echo judged # GOLD\n" + GRADE},
    )  # fmt: skip
    tasks.write("slow", "sleep 60", "agent = {timeout_sec = 1}")
    tasks.write("none", "true", **{"tests/test.sh": "exit 0 # GOLD\n"})
    steps = {f"steps/{name}/instruction.md": "echo 42 > answer" for name in ("one", "two")}
    tasks.write("steps", toml="[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n", **steps)
    results = tasks.run("--ageval-export=harbor")
    (job,) = (tasks.root / ".ageval" / "harbor-jobs").iterdir()
    assert harbor_shape.check_job(job) == 4
    text = "".join(path.read_text() for path in job.rglob("*") if path.is_file())
    assert "GOLD" not in text
    assert "tok-probe" not in text
    trials = {path.name.partition("__")[0]: path for path in job.iterdir() if path.is_dir()}
    found = {name: json.loads((path / "result.json").read_text()) for name, path in trials.items()}
    assert found["kept"]["verifier_environment_mode"] == "separate"
    assert (trials["kept"] / "verifier" / "test-stdout.txt").read_text() == "judged\n"
    assert (trials["kept"] / "agent" / "log").read_text() == "note\n"
    assert (trials["kept"] / "artifacts" / "app" / "answer").read_text() == "42\n"
    assert (trials["kept"] / "artifacts" / "logs" / "artifacts" / "token").read_text().startswith("[REDACTED")
    assert found["slow"]["exception_info"]["exception_type"] == "AgentTimeoutError"
    assert found["slow"]["verifier_result"] == {"rewards": {"reward": 0.0}}
    assert found["none"]["exception_info"]["exception_type"] == "RewardFileNotFoundError"
    assert found["none"]["verifier_result"] is None
    assert [row["verifier_result"] for row in found["steps"]["step_results"]] == [
        {"rewards": {"reward": 1.0}}
    ] * 2
    for step in ("one", "two"):
        document = json.loads((trials["steps"] / "steps" / step / "agent" / "trajectory.json").read_text())
        assert document["session_id"].startswith(f"sess_agent_{step}_")
    again = tasks.root.parent / "again"
    assert cli.main(["import", str(job), "--into", str(again)]) == 0
    back = {}
    for path in (again / "runs").glob("*/result.json"):
        result = json.loads(path.read_text())
        back[result["task_id"]] = (result["status"], result["score"], result["limit"])
    assert back == {name: (row["status"], row["score"], row["limit"]) for name, row in results.items()}


@pytest.mark.real_agent
def test_a_real_agent_without_a_network_reaches_its_model_and_nothing_else(tasks: Tasks) -> None:
    from pytest_ageval.testing.scripted_model import ScriptedModel, Shell, Text

    skill = "---\nname: counting\ndescription: How Harbor counts to forty-two.\n---\nCount.\n"
    for name, mode in (("closed", "no-network"), ("open", "public")):
        tasks.write(
            name,
            "Write 42.",
            f'[environment]\nnetwork_mode = "{mode}"\nskills_dir = "/skills"',
            **{
                "environment/Dockerfile": (
                    "FROM ageval-attempt:base\nUSER root\nWORKDIR /app\nCOPY s /skills\n"
                ),
                "environment/s/counting/SKILL.md": skill,
            },
        )
    script = [
        # A name that is known outside: of the archive that the image was made from.
        Shell(
            "echo 42 > answer; pwd > where; env > env; "
            "timeout 1 getent hosts $(grep -ohP '//\\K[^/ ]+' /etc/apt/sources.list | head -1) > out"
        ),
        Text("Done."),
    ]
    grade = GRADE + "cat /app/where; [ ! -s /app/out ] && echo closed; cat /app/env\n"
    for name in ("closed", "open"):
        (tasks.root / name / "tests" / "test.sh").write_text(grade)
    with ScriptedModel(script * 2) as model:
        results = tasks.run("--model=gpt-5.5", f"--base-url={model.base_url}", "-n0", agent="codex")
        assert "How Harbor counts to forty-two." in json.dumps(model.requests[0].body)
    assert {name: title(result) for name, result in results.items()} == {"closed": "PASS", "open": "PASS"}
    for name in ("closed", "open"):
        printed = (tasks.evidence[name] / "logs" / "verifier-main.stdout").read_text()
        assert printed.startswith("/app\n")
        assert ("closed" in printed) == (name == "closed")
