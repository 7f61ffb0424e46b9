"""Options: how each is spelled, and which source wins: command line, environment, ini."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

Source = Literal["cli", "env", "ini", "default"]


#: The options of the suite run that a session goes on with; None for one that nobody had given.
RECALLED = pytest.StashKey[Mapping[str, Any]]()

#: Attempts of ``--attempts auto`` without a number.
DEFAULT_MOST = 20


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `flags` are the short spellings; ``--ageval-<name>`` always exists.

    An optional value is `alone` when the option stands alone.
    """

    name: str
    flags: tuple[str, ...]
    help: str
    kind: Literal["value", "list", "flag", "int", "number", "optional", "attempts"] = "value"
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    alone: str = ""

    @property
    def long(self) -> str:
        """``--ageval-<name>``."""
        return f"--ageval-{self.name.replace('_', '-')}"

    @property
    def dest(self) -> str:
        """The name for ``config.getoption``."""
        return f"ageval_{self.name}"

    @property
    def ini(self) -> str:
        """The ini key."""
        return f"ageval_{self.name}"

    @property
    def env(self) -> str:
        """The environment variable."""
        return f"AGEVAL_{self.name.upper()}"

    @property
    def ini_type(self) -> Any:
        """What ``addini`` is told."""
        return {"list": "args", "flag": "bool"}.get(self.kind, "string")

    def argparse(self) -> dict[str, Any]:
        """Keyword arguments of ``addoption``."""
        found: dict[str, Any] = {"dest": self.dest, "default": None, "help": self.help}
        if self.kind == "flag":
            return {**found, "action": "store_true"}
        if self.kind == "optional":
            found |= {"nargs": "?", "const": self.alone}
        if self.choices:
            found["choices"] = self.choices
        if self.kind == "list":
            found["action"] = "append"
        if self.kind in ("int", "number"):
            found["type"] = int if self.kind == "int" else float
        if self.kind == "attempts":
            found["type"] = attempts
        return {**found, "metavar": self.metavar} if self.metavar else found


OPTIONS = (
    Option(
        "agent",
        ("--agent",),
        "agent to evaluate, NAME or ROLE=NAME (repeatable)",
        "list",
        metavar="NAME",
    ),
    Option(
        "model",
        ("--model",),
        "model in place of the agent's own (repeatable)",
        "list",
        metavar="ID",
    ),
    Option("box", ("--box",), "kind of box, such as local (repeatable)", "list", metavar="KIND"),
    Option(
        "box_option",
        ("--box-option",),
        "option of the box (repeatable)",
        "list",
        metavar="NAME=VALUE",
    ),
    Option(
        "attempts",
        ("--attempts",),
        "attempts at each task (default 1); auto: as many as a conclusion needs, at most MAX (20)",
        "attempts",
        metavar="N|auto[:MAX]",
    ),
    Option(
        "in_flight",
        ("--in-flight",),
        "attempts that each process keeps running at once (default: 1, more where all boxes are elsewhere)",
        "int",
        metavar="N",
    ),
    Option(
        "cpus",
        (),
        "processors that attempts in boxes of this machine may ask for together (default: all)",
        "number",
        metavar="N",
    ),
    Option(
        "memory",
        (),
        "memory that attempts in boxes of this machine may ask for together (default: all)",
        metavar="SIZE",
    ),
    Option(
        "max_sandboxes",
        (),
        "boxes of a kind that may be open at once (repeatable)",
        "list",
        metavar="KIND=N",
    ),
    Option(
        "requests_per_minute",
        (),
        "requests to a provider's models that may go out in a minute (repeatable)",
        "list",
        metavar="PROVIDER=N",
    ),
    Option(
        "confidence",
        ("--confidence",),
        "confidence at which --attempts auto concludes (default 0.95)",
        "number",
        metavar="NUMBER",
    ),
    Option(
        "pass_bound",
        ("--pass-bound",),
        "the pass probability that --attempts auto compares with (default 0.5)",
        "number",
        metavar="NUMBER",
    ),
    Option(
        "effort",
        ("--effort",),
        "reasoning effort asked of the model (repeatable)",
        "list",
        metavar="LEVEL",
    ),
    Option(
        "matrix",
        ("--matrix",),
        "combine all values of a list, or what a file says (repeatable)",
        "list",
        metavar="FILE|POINTER=[...]",
    ),
    Option("base_url", ("--base-url",), "address of the model's API", metavar="URL"),
    Option("profiles", ("--profiles",), "profiles.yaml in place of the data set's", metavar="FILE"),
    Option(
        "set",
        ("--set",),
        "replace one value of the configuration (repeatable)",
        "list",
        metavar="POINTER=JSON",
    ),
    Option(
        "permission",
        ("--permission",),
        "answer to agents that ask for permission (default allow)",
        choices=("allow", "deny", "ask", "hook"),
    ),
    Option(
        "agent_auth",
        ("--agent-auth",),
        "how agents sign in: with keys of the environment (default), or with your own login files",
        choices=("env", "keyless"),
    ),
    Option(
        "gateway",
        ("--gateway",),
        "agents in boxes call their model through the model gateway (default auto)",
        choices=("auto", "off"),
    ),
    Option("record", ("--record",), "record every model call into a directory", metavar="DIR"),
    Option(
        "replay",
        ("--replay",),
        "answer every model call from a recorded directory: no key, no network",
        metavar="DIR",
    ),
    Option(
        "plugins",
        (),
        "directory of an ageval.plugin/1 plugin, or of several (repeatable)",
        "list",
        metavar="DIR",
    ),
    Option(
        "harbor",
        (),
        "collect Harbor tasks: with an instruction beside task.toml (auto), every task.toml, or none",
        choices=("auto", "on", "off"),
    ),
    Option("harbor_unknown", (), "unknown keys of a task.toml", choices=("error", "warn")),
    Option("reward_key", (), "the reward of a Harbor task that decides (default: reward)", metavar="NAME"),
    Option(
        "pass_threshold",
        ("--pass-threshold",),
        "the reward from which on a Harbor task passes (default 1)",
        metavar="NUMBER",
    ),
    Option(
        "max_cost",
        ("--max-cost",),
        "US dollars that the whole run may spend; what has not begun then is not run",
        "number",
        metavar="USD",
    ),
    Option(
        "max_tokens",
        ("--max-tokens",),
        "tokens that the whole run may use, input and output",
        "int",
        metavar="N",
    ),
    Option(
        "max_cost_per_attempt",
        ("--max-cost-per-attempt",),
        "US dollars that one attempt's agents may spend; the work is judged then as it is",
        "number",
        metavar="USD",
    ),
    Option(
        "max_tokens_per_attempt",
        ("--max-tokens-per-attempt",),
        "tokens that one attempt's agents may use, input and output",
        "int",
        metavar="N",
    ),
    Option(
        "regrade",
        ("--regrade",),
        "judge the recorded work of a suite run or an attempt again; no agent starts (repeatable)",
        "list",
        metavar="SUITE|ATTEMPT",
    ),
    Option("prices", (), "file with prices of models, for costs that nobody reports", metavar="FILE"),
    Option(
        "fail_under",
        ("--fail-under",),
        "gate: the least pass rate of each agent, 0.8 or 80%%",
        metavar="RATE",
    ),
    Option("max_errors", ("--max-errors",), "gate: the most ERRORs of the run, 3 or 5%%", metavar="N"),
    Option(
        "baseline",
        ("--baseline",),
        "gate: no significant regression from a suite run, or a file of pytest-ageval gate",
        metavar="FILE|SUITE",
    ),
    Option(
        "baseline_alpha",
        ("--baseline-alpha",),
        "level of the baseline's test (default 0.05)",
        "number",
        metavar="P",
    ),
    Option(
        "allow_incomplete",
        ("--allow-incomplete",),
        "gates: judge a run, or a baseline, of which not every attempt was made",
        "flag",
    ),
    Option(
        "known_failures",
        ("--known-failures",),
        "file with the tasks that agents are known to FAIL",
        metavar="FILE",
    ),
    Option(
        "analyze",
        ("--analyze",),
        "show in the HTML report what an analyzer finds in each attempt",
        choices=("hack",),
    ),
    Option(
        "ci",
        (),
        "also report in the form of a CI system (default auto: the one that this runs in)",
        choices=("auto", "off", "github", "gitlab", "jenkins"),
    ),
    Option("dir", (), "directory of the evidence (default .ageval in the data set)", metavar="DIR"),
    Option(
        "checkpoints",
        (),
        "keep what agents have done so far, to go on after an interruption (default step)",
        choices=("off", "turn", "step"),
    ),
    Option(
        "resume",
        ("--resume",),
        "go on with a suite run (default: the last one); what has settled is shown and not run again",
        "optional",
        metavar="SUITE",
        alone="last",
    ),
    Option(
        "retry_errors",
        ("--retry-errors",),
        "with --resume: run ERRORs again",
        "flag",
    ),
    Option("replace", ("--replace",), "with --resume: run what is selected again, settled or not", "flag"),
    Option(
        "reuse",
        ("--reuse",),
        "take the result of an attempt with the same lock, from the cache of the evidence or from DIR",
        "optional",
        metavar="DIR",
        alone="default",
    ),
    Option(
        "remote_ignore",
        (),
        "with --tx ssh=...: files that do not travel, by name or path below the rootdir (repeatable)",
        "list",
        metavar="GLOB",
    ),
    Option("keep_workspace", ("--keep-workspace",), "leave the boxes' directories", "flag"),
    Option("trust_tasks", ("--trust-tasks",), "let run.py and evaluator.py do what you can do", "flag"),
    Option(
        "script_start",
        (),
        "how run.py and evaluator.py start: forked from a warm process (default), or as new interpreters",
        choices=("fork", "spawn"),
    ),
    Option("keep_raw", ("--keep-raw",), "keep the agents' own logs in the evidence", "flag"),
    Option(
        "export",
        (),
        "write every settled attempt in another program's form too, below the evidence",
        choices=("harbor",),
    ),
    Option(
        "exit",
        (),
        "exit code: pytest's own, or by verdict (8: only FAILs, 9: at least one ERROR)",
        choices=("pytest", "verdict"),
    ),
)

BY_NAME = {option.name: option for option in OPTIONS}


def attempts(text: str) -> int | str:
    """A whole number, or ``auto[:MAX]`` as it was given. Raises `argparse.ArgumentTypeError`."""
    if re.fullmatch(r"auto(:[0-9]+)?", text):
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number or auto[:MAX], found {text!r}") from None


def parse_attempts(given: int | str | None) -> tuple[int, bool]:
    """At most how many attempts, and whether fewer may do: ``auto:30`` is (30, True), ``auto`` (20, True)."""
    word, colon, most = str(1 if given is None else given).partition(":")
    if word != "auto":
        return int(word), False
    return (int(most) if colon else DEFAULT_MOST), True


def resolve(config: pytest.Config, name: str) -> tuple[Any, Source]:
    """The value of an option and where it comes from; (None, "default") if nobody gave it.

    Lists are not merged: the first source that has any wins; after the command line that is the suite run
    that the session goes on with. Raises `pytest.UsageError` for a value
    of the environment or of the ini file that the command line would refuse.
    """
    option = BY_NAME[name]
    value = config.getoption(option.dest)
    if value is not None and value is not False:
        return value, "cli"
    recalled = config.stash.get(RECALLED, {})
    if name in recalled:  # as if the command line had it, which it had
        return recalled[name], "default" if recalled[name] is None else "cli"
    text = os.environ.get(option.env, "")
    if text:
        return _parse(option, text, option.env), "env"
    value = config.getini(option.ini)
    if value is None or value == []:
        return None, "default"
    if option.kind in ("list", "flag"):
        return value, "ini"
    return _parse(option, str(value), option.ini), "ini"


def _parse(option: Option, text: str, where: str) -> Any:
    if option.kind == "list":
        return shlex.split(text)
    if option.kind == "flag":
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise pytest.UsageError(f"{where}: expected 1 or 0, found {text!r}")
    if option.kind == "attempts":
        try:
            return attempts(text)
        except argparse.ArgumentTypeError as error:
            raise pytest.UsageError(f"{where}: {error}") from None
    if option.kind == "int":
        try:
            return int(text)
        except ValueError:
            raise pytest.UsageError(f"{where}: expected a whole number, found {text!r}") from None
    if option.kind == "number":
        try:
            return float(text)
        except ValueError:
            raise pytest.UsageError(f"{where}: expected a number, found {text!r}") from None
    if option.choices and text not in option.choices:
        raise pytest.UsageError(f"{where}: expected one of {', '.join(option.choices)}, found {text!r}")
    return text
