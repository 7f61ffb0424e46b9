"""The reference pages name everything that exists: hooks, options, keys, error titles, agents."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import operator
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ageval_executors.acp.entries import ENTRIES
from pytest_ageval import hookspecs, sdk
from pytest_ageval.attempt.slots import FAIL_OPEN
from pytest_ageval.cli import COMMANDS
from pytest_ageval.config import formats, known_agents
from pytest_ageval.config.locked import Limits
from pytest_ageval.evidence.layout import Layout
from pytest_ageval.options import OPTIONS, Option
from pytest_ageval.registry import Registry

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
SOURCES = ("pytest_ageval", "boxes", "executors")
ERRORS = {"AgevalError", "BoxError", "ConfigError", "EvaluatorError", "ExecutorError", "ScriptFault"}

HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("pytest_ageval_"))


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def code_words(text: str) -> set[str]:
    """Every word that stands inside backticks."""
    return {word for code in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"[\w-]+", code)}


def table_rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]


@pytest.mark.parametrize("hook", HOOKS)
def test_hook(hook: str) -> None:
    rows = [row for row in table_rows(page("hooks.md")) if row[0] == f"`{hook}`"]
    assert len(rows) == 1, f"hooks.md: {hook} needs one row of the table, found {len(rows)}"
    fails_open = rows[0][-1] == "yes"
    assert fails_open == (hook.removeprefix("pytest_ageval_") in FAIL_OPEN)


def test_no_hook_is_invented() -> None:
    assert set(re.findall(r"pytest_ageval_[a-z_]+", page("hooks.md"))) <= set(HOOKS)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_option(option: Option) -> None:
    rows = [row for row in table_rows(page("options.md")) if row[0] == f"`{option.long}`"]
    assert len(rows) == 1, f"options.md: {option.long} needs one row, found {len(rows)}"
    _, flags, env, ini, value = rows[0]
    assert flags == ", ".join(f"`{flag}`" for flag in option.flags)
    assert env == f"`{option.env}`"
    assert ini == f"`{option.ini}` ({option.ini_type})"
    assert all(f"`{choice}`" in value for choice in option.choices)


def test_no_option_is_invented() -> None:
    known = {option.long for option in OPTIONS}
    for path in (ROOT / "docs").rglob("*.md"):
        found = set(re.findall(r"--ageval-[a-z-]+", path.read_text(encoding="utf-8")))
        assert found <= known, path


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command: str) -> None:
    assert f"`pytest-ageval {command} " in page("options.md")


def test_no_command_is_invented() -> None:
    for path in (ROOT / "docs").rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        found = set(re.findall(r"(?:`|\$ |'|^ +)pytest-ageval ([a-z]+)", text, re.MULTILINE))
        assert found <= set(COMMANDS), path


@pytest.mark.parametrize("name", formats.FORMATS)
def test_every_key_of_a_file(name: str) -> None:
    words = code_words(page("files.md"))
    missing = sorted(set(keys(formats.FORMATS[name])) - words)
    assert not missing, f"files.md says nothing of {missing}"


def keys(kind: Any) -> Iterator[str]:
    """The names of all fields of a Struct, those of inner ones included."""
    for field in msgspec.structs.fields(kind):
        yield field.encode_name
        for inner in structs(field.type):
            yield from keys(inner)


def structs(kind: Any) -> Iterator[Any]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for inner in getattr(kind, "__args__", ()):
        yield from structs(inner)
    if hasattr(kind, "__metadata__"):
        yield from structs(kind.__origin__)


def test_default_limits() -> None:
    rows = {row[0]: row for row in table_rows(page("files.md"))}
    for name in Limits.__dataclass_fields__:
        assert rows[f"`limits.{name}`"][2] == str(getattr(Limits(), name))


def raised_titles() -> dict[str, str]:
    """The literal titles of errors in the sources, with a file that has each."""
    found: dict[str, str] = {}
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and node.args and raises(node.func):
                    title = node.args[0]
                    if isinstance(title, ast.Constant) and isinstance(title.value, str):
                        found[title.value] = str(path.relative_to(ROOT))
    return found


def raises(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in ERRORS or function.id in ("CallFailedError", "Failure", "refused_result")
    if not isinstance(function, ast.Attribute) or function.attr != "error":
        return False
    return ast.unparse(function.value).endswith("source")


TITLES = raised_titles()


def test_titles_are_found() -> None:
    assert {"invalid_schema", "environment_setup_failed", "acp_runtime_node", "stream_cut"} <= TITLES.keys()
    assert len(TITLES) > 80


@pytest.mark.parametrize("title", sorted(TITLES))
def test_error_title(title: str) -> None:
    assert title in code_words(page("errors.md")), f"errors.md says nothing of {title} ({TITLES[title]})"


def test_agents_and_executors() -> None:
    registry = Registry()
    words = code_words(page("agents.md"))
    assert {*known_agents(registry), *registry.executor_kinds()} <= words
    for entry in ENTRIES.values():
        for package, version in entry.packages.items():
            assert f"`{package}` {version}" in page("agents.md")
        if entry.node is not None:
            assert f"{entry.node[0]}.{entry.node[1]} or newer" in page("agents.md")


def test_options_of_executors_and_boxes() -> None:
    registry = Registry()
    for kind in registry.executor_kinds():
        cls = registry.executor(kind)
        wanted = {field.encode_name for field in msgspec.structs.fields(cls.Options)} | cls.extra_allowlist
        assert wanted <= code_words(page("agents.md")), kind
    for kind in registry.box_kinds():
        assert f"\n## {kind}\n" in page("boxes.md")
        wanted = {field.encode_name for field in msgspec.structs.fields(registry.box(kind).Options)}
        assert wanted <= code_words(page("boxes.md")), kind


def test_every_file_of_an_attempt() -> None:
    text = (ROOT / "docs" / "how-to" / "evidence.md").read_text(encoding="utf-8")
    layout = Layout(Path("attempt"))
    for path in (
        *(layout.lock, layout.result, layout.summary, layout.activity, layout.trajectory, layout.facts),
        *(layout.artifacts, layout.checks, layout.observation, layout.private, layout.writer),
        *(layout.collected, layout.logs, layout.invocations("run"), layout.model_calls("run")),
    ):
        assert f"| `{path.relative_to('attempt')}" in text


def sdk_stubs() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions in the list of names, each with its dotted name."""
    names = page("sdk.md").partition("\n## Names\n")[2]
    for node in ast.parse(names.partition("```python\n")[2].partition("```")[0]).body:
        functions = node.body if isinstance(node, ast.ClassDef) else [node]
        for function in functions:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                yield ".".join(dict.fromkeys((getattr(node, "name", ""), function.name))), function


@pytest.mark.parametrize(("name", "stub"), [pytest.param(*row, id=row[0]) for row in sdk_stubs()])
def test_signature_of_the_sdk(name: str, stub: ast.FunctionDef) -> None:
    real = operator.attrgetter(name)(sdk)
    assert inspect.iscoroutinefunction(real) == isinstance(stub, ast.AsyncFunctionDef)
    found = {
        parameter.name: parameter.default
        for parameter in inspect.signature(real).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    arguments = [*stub.args.args, *stub.args.kwonlyargs]
    assert [argument.arg for argument in arguments] == list(found)
    required = {key for key, default in found.items() if default is inspect.Parameter.empty}
    without = stub.args.args[: len(stub.args.args) - len(stub.args.defaults)]
    pairs = zip(stub.args.kwonlyargs, stub.args.kw_defaults, strict=True)
    without += [argument for argument, default in pairs if default is None]
    assert {argument.arg for argument in without} == required


def test_every_name_of_the_sdk() -> None:
    words = set(re.findall(r"\w+", page("sdk.md").partition("\n## Names\n")[2].partition("## In full")[0]))
    assert set(sdk.__all__) - {"__version__"} <= words


TUTORIAL = ROOT / "docs" / "tutorial" / "write-a-task.md"


def test_the_tutorial_makes_a_task_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands make the directories, its files lie in them, and the task is what it says."""
    text = TUTORIAL.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for command in re.findall(r"^    (mkdir .*)", text, re.MULTILINE):
        subprocess.run(command.split(), check=True)
    for title, body in re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', text, re.DOTALL):
        Path(title).write_text(body, encoding="utf-8")
    made = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert "\n".join(made) in text
    for agent, status in (("nop", 8), ("oracle", 0)):
        command = [sys.executable, "-m", "pytest", "my-evals", "--agent", agent, "--ageval-exit=verdict"]
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider"], capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stdout
    assert "answer.json has the number of words" in text


def contract_classes() -> Iterator[type]:
    """The test classes of tests/contract that run the executor contract."""
    for path in sorted((ROOT / "tests" / "contract").glob("test_executor_*.py")):
        spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with warnings.catch_warnings():
            # The kit is imported already when the second module wants its assertions rewritten.
            warnings.simplefilter("ignore", pytest.PytestAssertRewriteWarning)
            spec.loader.exec_module(module)
        yield from (found for name, found in vars(module).items() if name.startswith("Test"))


def test_the_contract_says_what_each_executor_cannot_do() -> None:
    """Every gap that a contract test knows is in the table, word for word."""
    contract = page("agents.md").partition("\n## Contract\n")[2].partition("\n## ")[0]
    found = {why for cls in contract_classes() for why in getattr(cls, "cannot", {}).values()}
    assert len(found) > 4
    assert [why for why in sorted(found) if why not in contract] == []
