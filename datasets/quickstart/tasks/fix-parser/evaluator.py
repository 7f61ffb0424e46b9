"""Run the harvested program on inputs that the agent has not seen."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ageval_sdk import ScriptError
from shared.grading import Grade, Unreadable, parse_object, read_text, shorten

#: Linux takes at most 128 KiB as one argument of a command.
MAX_PROGRAM_BYTES = 100_000
SECONDS_A_CASE = 5
#: The program and its input travel as arguments: nothing that lies in the workspace takes part.
COMMAND = 'printf %s "$2" | exec python3 -I -c "$1"'


async def evaluate(inputs: dict[str, Any]) -> dict[str, Any]:
    """One check for each hidden case."""
    grade = Grade()
    gold = Path(inputs["evaluation_dir"], "cases.json").read_text(encoding="utf-8")
    try:
        program = read_text(inputs["artifacts"], "program")
        if len(program.encode()) > MAX_PROGRAM_BYTES:
            raise Unreadable(f"the program has more than {MAX_PROGRAM_BYTES} bytes")
        if "\0" in program:
            raise Unreadable("the program holds a NUL character")
    except Unreadable as problem:
        grade.check("program", False, "ini2json.py is in the workspace", str(problem))
        return grade.verdict()
    for case in json.loads(gold):
        done = await inputs["scoring"].exec(
            "main",
            ["sh", "-c", COMMAND, "sh", program, case["input"]],
            timeout_sec=SECONDS_A_CASE,
        )
        if done.exit_code == 127:
            raise ScriptError("python_missing", f"the box has no python3: {shorten(done.stderr)}")
        problem = fault(case, done)
        grade.check(case["id"], not problem, case["title"], problem)
    return grade.verdict()


def fault(case: dict[str, Any], done: Any) -> str:
    """What is wrong with one run of the program; empty if nothing is."""
    ended = f"exit code {done.exit_code}, stderr: {shorten(done.stderr) or '(empty)'}"
    if done.exit_code != case.get("exit_code", 0):
        return ended
    if "stderr" in case:
        right = done.stderr.startswith(case["stderr"]) and not done.stdout
        return "" if right else f"{ended}, stdout: {shorten(done.stdout) or '(empty)'}"
    try:
        answer = parse_object(done.stdout)
    except Unreadable as problem:
        return f"standard output is {problem}"
    return "" if digest(answer) == case["sha256"] else shorten(answer)


def digest(answer: dict[str, Any]) -> str:
    """SHA-256 of the answer as JSON with sorted keys and no spaces."""
    text = json.dumps(answer, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
