"""``--resume`` goes on with the experiment that was begun: its options are those of the first session.

What the command line gives now may select among the recorded cells and add attempts; what would make
another experiment of it is refused.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ageval import options
from pytest_ageval.errors import AgevalError, ConfigError

if TYPE_CHECKING:
    from pytest_ageval.job import Job
    from pytest_ageval.suite.record import SuiteHeader

#: Options of which a cell is made: fewer of their values are a selection.
CELLS = ("agent", "model", "effort", "box", "matrix")

#: Options that hold for every attempt of a suite run.
FIXED = (
    *("set", "box_option", "profiles", "permission", "reward_key", "pass_threshold"),
    *("max_cost_per_attempt", "max_tokens_per_attempt", "confidence", "pass_bound"),
)

#: Options that are remembered and may be given anew: the digest of the lock decides, or nothing.
FREE = ("attempts", "base_url", "agent_auth", "gateway")

REMEMBERED = (*CELLS, *FIXED, *FREE)

#: Options of pytest that select items, by their name in ``config.option``.
SELECTING = {"-k": "keyword", "-m": "markexpr"}


# -- what is kept ----------------------------------------------------------------------------------


def kept(job: Job, sources: tuple[str, ...]) -> dict[str, Any]:
    """What the record says of a session's options; `sources` are suite runs that it judges again."""
    found: dict[str, Any] = {}
    for name in REMEMBERED:
        value, source = options.resolve(job.config, name)
        if value is not None:
            found[name] = _portable(job, name, value, source)
    found |= {flag: text for flag, dest in SELECTING.items() if (text := job.config.getoption(dest, ""))}
    if regrade := job.option("regrade"):
        found["regrade"] = [one for name in regrade for one in (sources if name == "last" else (name,))]
    return found


def _portable(job: Job, name: str, value: Any, source: options.Source) -> Any:
    """A value that means the same in another directory."""
    base = job.config.rootpath if source == "ini" else job.config.invocation_params.dir
    if name == "profiles":
        return str(base / Path(value).expanduser())
    if name == "matrix":
        return [
            text if text[:1] == "/" and "=" in text else str(base / Path(text).expanduser()) for text in value
        ]
    return list(value) if isinstance(value, list | tuple) else value


def cells(job: Job) -> tuple[str, ...]:
    """The cells of the session's matrix in words."""
    if job.regrading is not None:
        return ()
    return tuple(dict.fromkeys(variant.words() for variant in job.variants))


# -- what is taken ---------------------------------------------------------------------------------


def recall(job: Job, dataset_root: Path) -> None:
    """Let the session have the options of the suite run that it goes on with, if it can be found.

    Why it cannot is said when the suite run is opened.
    """
    config = job.config
    if job.option("resume") is None or options.RECALLED in config.stash:
        return
    from pytest_ageval.suite.record import read_header
    from pytest_ageval.suite_opening import to_resume

    try:
        root = to_resume(job, job.evidence_root(dataset_root).absolute())
        header = None if root is None else read_header(root)
    except (AgevalError, OSError):
        return
    if header is None or (not header.options and not header.cells):
        return
    was = header.options
    if job.option("regrade") in (None, ["last"]) and was.get("regrade"):
        config.option.ageval_regrade = list(was["regrade"])
    if not was.get("regrade"):
        config.stash[options.RECALLED] = {name: was.get(name) for name in REMEMBERED}
    if not any(config.getoption(dest, "") for dest in SELECTING.values()):
        for flag, dest in SELECTING.items():
            setattr(config.option, dest, was.get(flag, ""))


# -- what is refused -------------------------------------------------------------------------------


def check(job: Job, header: SuiteHeader) -> None:
    """ConfigError ``resume_options_differ`` if the session would make another experiment of a suite run."""
    was = header.options
    if not was and not header.cells:  # imported, or made before options were kept
        return
    if bool(was.get("regrade")) != bool(job.option("regrade")):
        what = f"judges {', '.join(was['regrade'])} again" if was.get("regrade") else "runs attempts"
        raise _differs(header, what, "--regrade" if job.option("regrade") else "no --regrade")
    if job.regrading is not None:
        return
    more = [cell or "no option" for cell in cells(job) if cell not in header.cells]
    if more:
        known = "; ".join(cell or "no agent, model or box named" for cell in header.cells[:5])
        raise _differs(header, f"has {known}", f"{'; '.join(more[:5])}")
    for name in FIXED:
        value, source = options.resolve(job.config, name)
        now = None if value is None else _portable(job, name, value, source)
        if _compared(now) != _compared(was.get(name)):
            raise _differs(header, _shown(name, was.get(name)), _shown(name, now))
    autos = [str(value or "").startswith("auto") for value in (was.get("attempts"), job.option("attempts"))]
    if autos[0] != autos[1]:
        raise _differs(
            header, _shown("attempts", was.get("attempts")), _shown("attempts", job.option("attempts"))
        )


def _differs(header: SuiteHeader, was: str, now: str) -> ConfigError:
    return ConfigError(
        "resume_options_differ",
        f"--resume: suite {header.suite_run_id} {was}; this session asks for {now}",
        hint="leave the option out, then that of the suite run is taken; or begin a new suite run without "
        "--resume",
    )


def _compared(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, list | tuple) else value and str(value)


def _shown(name: str, value: Any) -> str:
    flag = options.BY_NAME[name].flags[:1] or (options.BY_NAME[name].long,)
    if value is None:
        return f"no {flag[0]}"
    values = value if isinstance(value, list | tuple) else [value]
    return " ".join(f"{flag[0]} {shlex.quote(str(each))}" for each in values)


# -- what is said ----------------------------------------------------------------------------------


def words(header: SuiteHeader) -> str:
    """``--agent codex --attempts 5 -k parser``: the options of a suite run; empty for none."""
    return " ".join(_words(header.options))


def _words(was: Mapping[str, Any]) -> Iterator[str]:
    for name in (*REMEMBERED, "regrade"):
        if name in was:
            yield _shown(name, was[name])
    for flag in SELECTING:
        if flag in was:
            yield f"{flag} {shlex.quote(str(was[flag]))}"


def notes(header: SuiteHeader, new: int, where: Path) -> Iterator[str]:
    """What the session goes on with, and how many slots are new in it."""
    given = words(header) or "no options"
    yield f"goes on with suite {header.suite_run_id} ({os.path.relpath(where)}) and its options: {given}"
    if new:
        slots = "1 slot is" if new == 1 else f"{new} slots are"
        yield f"{slots} new in suite {header.suite_run_id}: the sessions before had not selected them"
