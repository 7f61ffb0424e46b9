"""What a contained script cannot do: each test makes the attempt, and one shows that it works otherwise."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from test_worker_cost import server_and_workers
from worker_bench import Bench

from pytest_ageval.worker import view
from pytest_ageval.worker.client import WorkerPool

pytestmark = pytest.mark.skipif(view.unusable() is not None, reason=f"not possible here: {view.unusable()}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The operator's, with a key."""
    path = tmp_path / "home"
    (path / ".ssh").mkdir(parents=True)
    (path / ".ssh" / "id").write_text("the key")
    monkeypatch.setenv("HOME", str(path))
    caches = (view._temporary, view._broad, view._machine_shows, view._of_task)
    for cache in caches:
        cache.cache_clear()
    yield path
    for cache in caches:
        cache.cache_clear()


def attempted(bench: Bench, code: str, kind: str = "run", **more: Any) -> str:
    """Run `code` in a script of `kind`: ``done`` and its `found`, or the class of the error."""
    source = f"""
import os, pathlib, subprocess, sys

def {kind}(given):
    found = ""
    try:
{indent(code.strip(), "        ")}
    except OSError as error:
        print(type(error).__name__, end="")
    else:
        print("done", found, end="")
    return {{"status": "PASS"}} if {kind == "evaluate"} else None
"""
    outcome = bench.run(source, kind, **{"contained": True, **more})  # type: ignore[arg-type]
    assert outcome.status == "returned", outcome
    return outcome.stdout_tail


@pytest.mark.parametrize("kind", ["run", "evaluate"])
def test_only_its_own_places_can_be_written(bench: Bench, kind: str) -> None:
    own = (bench.workspace, bench.artifacts, Path("/tmp"), Path("/dev/shm"))
    others = (bench.root, bench.task, Path("/etc"), Path("/"), Path("/home"), Path("/run"), Path("/dev"))
    bench.task.mkdir(parents=True)
    for place in own:
        assert attempted(bench, f"pathlib.Path({str(place)!r}, 'new').touch()", kind) == "done "
    for place in others:
        assert attempted(bench, f"pathlib.Path({str(place)!r}, 'new').touch()", kind) == "OSError", place
        assert not (place / "new").exists()
    assert (bench.workspace / "new").exists()
    assert not Path("/tmp/new").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_the_files_of_the_boxes_user_can_be_changed_and_nothing_else_of_theirs(bench: Bench) -> None:
    """As with a container whose user is not ours: run.py reads, writes and removes in its workspace."""
    inner = bench.workspace / "inner"
    inner.mkdir(parents=True)
    (inner / "theirs").write_text("42")
    (inner / "theirs").chmod(0o600)
    inner.chmod(0o700)
    other = bench.root / "of-another-box"
    other.write_text("not yours")
    for path in (bench.workspace, inner, inner / "theirs", other):
        os.chown(path, 10001, 10002)
    code = f"""
    inner = pathlib.Path({str(inner)!r})
    found = (inner / "theirs").read_text()
    (inner / "theirs").write_text("43")
    (inner / "new").touch()
    os.chown(inner / "new", 10001, 10002)
    (inner / "old").touch()
    (inner / "old").unlink()
    """
    code = "\n".join(line[4:] for line in code.strip("\n").splitlines())
    assert attempted(bench, code, owner=None) == "PermissionError"
    assert attempted(bench, code, owner=(10001, 10002)) == "done 42"
    assert (inner / "theirs").read_text() == "43"
    assert (inner / "new").stat().st_uid == 10001
    for harm in (f"pathlib.Path({str(other)!r}).write_text('x')", "os.setuid(10001)", "os.setgid(10002)"):
        assert attempted(bench, harm, owner=(10001, 10002)) in ("OSError", "PermissionError"), harm
    assert other.read_text() == "not yours"


def test_a_trusted_script_can_write_where_its_user_can(bench: Bench) -> None:
    code = f"pathlib.Path({str(bench.root / 'new')!r}).touch()"
    assert attempted(bench, code, contained=False) == "done "
    assert (bench.root / "new").exists()


def test_programs_that_it_starts_are_contained_too(bench: Bench) -> None:
    code = f"found = subprocess.run(['touch', {str(bench.root / 'new')!r}], capture_output=True).returncode"
    assert attempted(bench, code) == "done 1"
    assert not (bench.root / "new").exists()


def test_gold_and_solution_are_for_the_evaluator(bench: Bench) -> None:
    for name in ("evaluation", "solution"):
        bench.write(f"{name}/gold.txt", "42")
        code = f"found = pathlib.Path({str(bench.task / name / 'gold.txt')!r}).read_text()"
        assert attempted(bench, code, contained=False) == "done 42"
        assert attempted(bench, code) == "FileNotFoundError"
        assert attempted(bench, code, "evaluate") == "done 42"


def test_the_evaluators_copy_of_gold_is_there_wherever_it_lies(bench: Bench, tmp_path: Path) -> None:
    copy = tmp_path / "gold"
    copy.mkdir()
    (copy / "a").write_text("42")
    code = "found = pathlib.Path(given['evaluation_dir'], 'a').read_text()"
    assert attempted(bench, code, "evaluate", evaluation=copy) == "done 42"


def test_the_operators_home_is_empty(bench: Bench, home: Path) -> None:
    code = f"found = pathlib.Path({str(home / '.ssh' / 'id')!r}).read_text()"
    assert attempted(bench, code, contained=False) == "done the key"
    assert attempted(bench, code) == "FileNotFoundError"


def test_a_data_set_in_the_home_directory_is_there(home: Path) -> None:
    bench = Bench(home / "work" / "dataset")
    bench.write("task.yaml", "x")
    code = f"found = os.listdir({str(home)!r}), os.listdir(given.dataset_root)"
    assert attempted(bench, code) == "done (['work'], ['tasks', 'box'])"


def test_a_data_set_that_is_the_home_directory_shows_no_hidden_file(home: Path) -> None:
    bench = Bench(home)
    code = "found = sorted(os.listdir(given.dataset_root)), (given.task_root / 'run.py').exists()"
    assert attempted(bench, code) == "done (['box', 'tasks'], True)"


def test_a_data_set_that_is_reached_by_a_link_hides_the_same(home: Path, tmp_path: Path) -> None:
    (home / "dataset").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    bench = Bench(home / "dataset")
    bench.write("lib/helper.py", "VALUE = 42")
    bench.write("evaluation/gold.txt", "42")
    assert attempted(bench, "from lib.helper import VALUE; found = VALUE") == "done 42"
    for root in (home / "dataset", tmp_path / "elsewhere"):
        code = f"found = pathlib.Path({str(root)!r}, 'tasks/t/evaluation/gold.txt').read_text()"
        assert attempted(bench, code) == "FileNotFoundError"
        assert attempted(bench, code, contained=False) == "done 42"


def test_history_of_the_data_set_is_not_there(bench: Bench) -> None:
    (bench.root / ".git").mkdir()
    (bench.root / ".git" / "objects").touch()
    assert attempted(bench, f"found = os.listdir({str(bench.root / '.git')!r})") == "done []"


def test_packages_that_are_installed_elsewhere_are_there(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, packages = home / "my project", tmp_path / "site-packages"
    (packages / "mine-1.dist-info").mkdir(parents=True)
    project.mkdir()
    note = {"url": project.as_uri(), "dir_info": {"editable": True}}
    (packages / "mine-1.dist-info" / "direct_url.json").write_text(json.dumps(note))
    (packages / "older.pth").write_text(f"{home}/older\nimport os\n")
    assert list(view._installed_elsewhere(packages)) == [project, home / "older"]
    monkeypatch.setattr("site.getsitepackages", lambda: [str(packages)])
    spec = Bench(tmp_path).spec("def run(ctx): pass")
    assert ["ro", str(project), str(project)] in view.plan(spec)


def test_other_attempts_and_credentials_of_the_data_set_are_not_there(bench: Bench) -> None:
    runs = bench.root / ".ageval" / "runs"
    other = runs / "attempt_0" / "lock.json"
    other.parent.mkdir(parents=True)
    other.write_text("{}")
    (bench.root / ".env").write_text("KEY=1")
    artifacts = runs / "attempt_1" / "task-artifacts"
    artifacts.mkdir(parents=True)
    see: dict[str, Any] = {"artifacts": artifacts, "hidden": (runs,)}
    assert attempted(bench, f"found = os.listdir({str(runs)!r})", **see) == "done ['attempt_1']"
    assert attempted(bench, f"pathlib.Path({str(other)!r}).read_text()", **see) == "FileNotFoundError"
    read = f"found = pathlib.Path({str(bench.root / '.env')!r}).read_text()"
    assert attempted(bench, read, **see) == "done "
    assert attempted(bench, f"pathlib.Path({str(artifacts)!r}, 'new').touch()", **see) == "done "
    assert (artifacts / "new").exists()


def test_no_way_back_through_proc(bench: Bench) -> None:
    for name in ("root", "cwd", "environ", "mem", "fd/0"):
        path = f"/proc/{os.getpid()}/{name}"
        assert attempted(bench, f"os.open({path!r}, os.O_RDONLY)") == "PermissionError", name
    assert attempted(bench, "open('/proc/sys/kernel/core_pattern', 'w')") in ("OSError", "PermissionError")


def test_what_was_mounted_cannot_be_undone(bench: Bench, home: Path) -> None:
    for command in (f"umount {home}", "mount -o remount,rw /", "mount -o remount,rw,bind /"):
        assert attempted(bench, f"found = subprocess.call({command.split()!r})") not in ("done 0", ""), (
            command
        )
    nested = f"umount {home}; mount -o remount,rw,bind /; cat {home}/.ssh/id; touch {bench.root}/new"
    code = f"found = subprocess.run(['unshare', '-Urm', 'sh', '-c', {nested!r}], capture_output=True).stdout"
    if shutil.which("unshare"):
        assert attempted(bench, code) == "done b''"
    assert not (bench.root / "new").exists()


def test_nothing_is_left_of_its_privileges(bench: Bench) -> None:
    code = "found = [l for l in open('/proc/self/status') if l.startswith(('CapEff', 'NoNewPrivs'))]"
    effective = 0xDB if os.geteuid() == 0 else 0
    assert attempted(bench, code) == f"done ['CapEff:\\t{effective:016x}\\n', 'NoNewPrivs:\\t1\\n']"


def test_what_scripts_rely_on_works(bench: Bench) -> None:
    bench.write("lib/helper.py", "VALUE = 42\n")
    code = """
import json, tempfile, multiprocessing, asyncio
from lib.helper import VALUE
with tempfile.NamedTemporaryFile() as file:
    file.write(b"x")
master, slave = os.openpty()
done = subprocess.run([sys.executable, "-c", "import json; print(1)"], capture_output=True, text=True)
found = VALUE, done.stdout, open("/dev/stdout", "a").close(), open("/dev/urandom", "rb").read(0)
"""
    assert attempted(bench, code) == "done (42, '1\\n', None, b'')"
    assert not list(bench.task.rglob("__pycache__"))


def test_a_link_in_the_place_of_the_workspace_leads_nowhere(bench: Bench, home: Path) -> None:
    spec = bench.spec("def run(ctx): print(__import__('os').listdir('.ssh'))", contained=True)
    bench.workspace.rmdir()
    bench.workspace.symlink_to(home)

    async def body(pool: WorkerPool) -> tuple[str, str]:
        outcome = await (await pool.start(spec, bench.handler)).wait()
        assert outcome.error is not None
        return outcome.error["title"], outcome.stdout_tail

    title, printed = bench.with_pool(body)
    assert title in ("containment_failed", "NotADirectoryError")
    assert printed == ""


def test_a_killed_worker_is_gone_with_all_it_started(bench: Bench) -> None:
    spec = bench.spec(
        """
        import subprocess, time
        def run(ctx):
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            (ctx.workspace_root / "pid").write_text(str(child.pid))
            time.sleep(600)
        """,
        contained=True,
    )

    async def body(pool: WorkerPool) -> int:
        worker = await pool.start(spec, bench.handler)
        pid = int(await bench.until_written("pid", worker))
        await worker.kill()
        return pid

    assert not Path(f"/proc/{bench.with_pool(body)}").exists()


def test_a_script_cannot_signal_its_parent(bench: Bench) -> None:
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 12):
        pytest.skip("needs Linux 6.12")
    assert attempted(bench, f"os.kill({os.getpid()}, 0)") == "PermissionError"
    assert attempted(bench, "child = subprocess.Popen(['sleep', '9']); child.kill(); child.wait()") == "done "


def test_it_costs_a_few_milliseconds(bench: Bench) -> None:
    async def body(pool: WorkerPool, contained: bool) -> float:
        spec = bench.spec("async def run(ctx): pass", contained=contained)
        await (await pool.start(spec, bench.handler)).wait()
        assert pool.server_pid is not None
        before = server_and_workers(pool.server_pid)
        for _ in range(40):
            await (await pool.start(spec, bench.handler)).wait()
        return (server_and_workers(pool.server_pid) - before) / 40

    with_view = bench.with_pool(lambda pool: body(pool, True))
    without = bench.with_pool(lambda pool: body(pool, False))
    assert with_view - without < 0.005, (with_view, without)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_can_contain_scripts_as_well(tmp_path: Path) -> None:
    python = shutil.which("python3", path="/usr/bin")
    if python is None:
        pytest.skip("no Python that everybody may start")
    package = tmp_path / "package"
    shutil.copytree(Path(view.__file__).parents[1], package / "pytest_ageval")
    for parent in (tmp_path, *tmp_path.parents[:-2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    code = (
        f"import os, sys; sys.path.insert(0, {str(package)!r})\n"
        "from pytest_ageval.worker import namespace\n"
        "namespace.enter([['tmp', '/tmp', ''], ['hide', '/home', '']])\n"
        "open('/tmp/new', 'w'); print(os.listdir('/tmp'), os.geteuid())\n"
        "try: open('/var/tmp/new', 'w')\n"
        "except OSError as error: print(error.errno)\n"
    )
    argv = [python, "-I", "-c", code]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, user=65534, group=65534, extra_groups=[]
    )
    assert done.stdout == "['new'] 65534\n30\n", done.stderr
