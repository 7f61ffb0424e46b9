"""What a worker does: become a clean process, run one script's function, send what came of it."""

from __future__ import annotations

import asyncio
import atexit
import gc
import importlib.machinery
import importlib.util
import inspect
import io
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_ageval import sdk
from pytest_ageval.sdk import _channel
from pytest_ageval.worker import faults, namespace, prctl, protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import ModuleType

    from pytest_ageval.worker.server import Inherited

#: Descriptor of the socket to the parent in every worker.
_CHANNEL = 3

#: Modules that most scripts import; loaded once in the server and shared by all workers.
_WARM = (
    "argparse collections contextlib copy csv dataclasses datetime decimal difflib enum fractions functools "
    "hashlib itertools logging math random re shutil statistics string subprocess tempfile textwrap time "
    "traceback types typing urllib.parse uuid"
)


def warm_up() -> None:
    """In the server: load what scripts need, prepare for forking."""
    for name in _WARM.split():
        importlib.import_module(name)
    name_sdk()
    # The collector's marks would otherwise copy every shared page into every worker.
    gc.collect()
    gc.disable()
    gc.freeze()


def name_sdk() -> None:
    """Give the SDK its second name, ``ageval_sdk``."""
    for name in [name for name in sys.modules if name.startswith("pytest_ageval.sdk")]:
        alias = name.replace("pytest_ageval.sdk", "ageval_sdk", 1)
        sys.modules[alias] = sys.modules[name]


def work(inherited: Inherited) -> NoReturn:
    """In the worker, forked or spawned: all of its life."""
    os.setsid()
    prctl.die_with_parent(inherited.server_pid)
    prctl.become_subreaper()
    _take_descriptors(inherited)
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.enable()
    channel = _channel.Channel(socket.socket(fileno=_CHANNEL))
    launch: protocol.Launch = channel.receive()  # type: ignore[assignment]
    result = _contain(launch, inherited.server_pid) or _result(launch, channel)
    _send_result(channel, result, launch["function"])
    _finish()
    os._exit(result.get("exit_code", 0 if result["status"] == "returned" else 1))


def _take_descriptors(inherited: Inherited) -> None:
    """0, 1, 2 and 3 are what they should be; nothing else is open."""
    null = os.open(os.devnull, os.O_RDONLY)
    # Out of the way first: the received numbers may themselves be among 0 to 3.
    moved = [
        os.dup2(number, 100 + index, inheritable=False)
        for index, number in enumerate((null, *inherited[2:], inherited.channel))
    ]
    for target, number in enumerate(moved):
        os.dup2(number, target, inheritable=target != _CHANNEL)
    os.closerange(_CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A print of odd characters never fails. (Nothing is buffered: a killed script's last words
            # are there, since the server runs with -u.)
            stream.reconfigure(errors="backslashreplace")


def _contain(launch: protocol.Launch, server_pid: int) -> dict[str, Any] | None:
    """Take the view that the parent asked for; the result frame when that fails: nothing runs then."""
    if launch["view"] is None:
        return None
    try:
        namespace.enter(launch["view"])
    except OSError as error:
        message = f"the script could not be contained: {error.strerror}; see --trust-tasks"
        fault = protocol.ErrorInfo(
            title="containment_failed", message=message, traceback=None, file=None, line=None
        )
        return {"t": "result", "status": "raised", "error": fault}
    # The kernel forgets this when credentials change.
    prctl.die_with_parent(server_pid)
    return None


# -- running -------------------------------------------------------------------------------------


def _result(launch: protocol.Launch, channel: _channel.Channel) -> dict[str, Any]:
    """Run the script; the result frame, whatever happens."""
    own = [launch["task_root"], launch["script"]]
    if launch["dataset_root"] is not None:
        own.append(launch["dataset_root"])
    try:
        _settle_in(launch)
        _channel.connect(channel)
        function = _load(launch)
        run = _run if launch["kind"] == "run" else _evaluate
        return {"t": "result", "status": "returned", "value": run(function, launch)}
    except SystemExit as error:
        code = _exit_code(error)
        fault = faults.describe_fault(error, own)
        return {"t": "result", "status": "exited", "exit_code": code, "error": fault}
    except BaseException as error:
        return {"t": "result", "status": "raised", "error": faults.describe_fault(error, own)}


def _settle_in(launch: protocol.Launch) -> None:
    """The environment, the current directory and the import path that the parent asked for."""
    os.environ.clear()
    os.environ.update(launch["env"])
    if "TZ" in launch["env"]:
        time.tzset()
    os.chdir(launch["workspace"])
    roots = [launch["task_root"]]
    if launch["dataset_root"] not in (None, launch["task_root"]):
        roots.append(str(launch["dataset_root"]))
    sys.path[:0] = roots
    sys.path_hooks.insert(0, _task_finder(roots))
    sys.argv[:] = [launch["script"]]


class _TaskLoader(importlib.machinery.SourceFileLoader):
    """Compiles from source each time: no ``__pycache__`` in a data set is written, nor believed.

    (Byte code is not part of what is hashed, and may be anything.)
    """

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError("the byte code cache is not used for task code")


def _task_finder(roots: list[str]) -> Callable[[str], importlib.machinery.FileFinder]:
    """A path hook for the task's own directories; environments installed below them are not."""
    hook = importlib.machinery.FileFinder.path_hook(
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
        (_TaskLoader, importlib.machinery.SOURCE_SUFFIXES),
    )

    def find(path: str) -> importlib.machinery.FileFinder:
        own = any(path == root or path.startswith(root + os.sep) for root in roots)
        if not own or path.startswith(sys.prefix + os.sep) or "site-packages" in path:
            raise ImportError("not a task's directory")
        return hook(path)  # type: ignore[return-value]

    return find


def _load(launch: protocol.Launch) -> Callable[[Any], Any]:
    """The function to call, from its file: what else has the file's name does not matter."""
    path = Path(launch["script"])
    name = f"ageval_task_{path.stem}"
    loader = _TaskLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None or not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    module: ModuleType = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look a class's module up here.
    sys.modules[name] = module
    loader.exec_module(module)
    function = getattr(module, launch["function"], None)
    if not callable(function):
        raise AttributeError(f"{path.name} defines no function {launch['function']!r}")
    return function  # type: ignore[no-any-return]


def _call(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call a plain or a coroutine function. A plain one may itself use ``asyncio.run``."""
    found = function(argument)
    return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _run(function: Callable[[Any], Any], launch: protocol.Launch) -> dict[str, Any]:
    context = sdk.RunContext(
        params=sdk.RunParameterView(launch["params"]),
        scope=sdk.RunScope(
            attempt_id=launch["attempt_id"],
            trial_id=launch["trial_id"],
            run_id=launch["run_id"],
            deadline_monotonic=launch["deadline_monotonic"],
        ),
        workspace_root=Path(launch["workspace"]),
        artifact_dir=Path(launch["artifacts"]),
        dataset_root=Path(launch["dataset_root"]) if launch["dataset_root"] else None,
        task_root=Path(launch["task_root"]),
        agent=sdk.Agent(launch["attempt_id"]),
    )
    try:
        terminal = _call(function, context)
    finally:
        context.close()
    if terminal is None:
        terminal = sdk.RunTerminal.completed()
    elif not isinstance(terminal, sdk.RunTerminal):
        terminal = sdk.RunTerminal.failed("invalid_terminal")
    published = {name: str(path) for name, path in context.published.items()}
    return {"terminal": terminal.to_dict(), "published": published}


def _evaluate(function: Callable[[Any], Any], launch: protocol.Launch) -> Any:
    inputs = {
        **launch["inputs"],
        "agent": sdk.Agent(launch["attempt_id"]),
        "scoring": sdk.Scoring(),
    }
    return _call(function, inputs)


# -- ending --------------------------------------------------------------------------------------


def _exit_code(error: SystemExit) -> int:
    """As the interpreter would end: text goes to stderr and means 1."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def _send_result(channel: _channel.Channel, result: dict[str, Any], function: str) -> None:
    try:
        channel.send(result)
        return
    except protocol.FrameTooLarge as error:
        title, message = "result_too_large", f"{function}() returned too much: {error}"
    except (TypeError, ValueError, RecursionError) as error:
        where = _not_json(result.get("value"), f"{function}()") or str(error)
        title, message = "TypeError", f"{function}() returned something that is not JSON: {where}"
    fault = protocol.ErrorInfo(title=title, message=message, traceback=None, file=None, line=None)
    channel.send({"t": "result", "status": "raised", "error": fault})


def _not_json(value: Any, path: str, depth: int = 0) -> str | None:
    """``evaluate()["metrics"]["x"] is a set``: the first part that JSON does not have."""
    if depth > 100:
        return f"{path} is nested too deeply"
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str | int | float | bool | None):
                return f"{path} has a key of type {type(key).__name__}"
            parts.append((f"{path}[{key!r}]", part))
    elif isinstance(value, list | tuple):
        parts = [(f"{path}[{index}]", part) for index, part in enumerate(value)]
    else:
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            return f"{path} is of type {type(value).__name__} ({error})"
    for deeper, part in parts:
        found = _not_json(part, deeper, depth + 1)
        if found is not None:
            return found
    return None


def _finish() -> None:
    """What an interpreter does at its end and scripts rely on, without taking everything down.

    Threads that are not daemons are waited for (the parent waits a few seconds), exit functions run,
    and files that were left open are flushed.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    writers = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    for found in [one for one in gc.get_objects() if isinstance(one, writers)]:
        _flush(found)
    _flush(sys.stdout)
    _flush(sys.stderr)


def _flush(stream: Any) -> None:
    try:
        if not stream.closed:
            stream.flush()
    except (OSError, ValueError) as error:
        os.write(2, f"could not write out {stream!r}: {error}\n".encode("utf-8", "replace"))
