"""Plugins in the format ``ageval.plugin/1``, and a package with an entry point: the examples of the docs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .attempt_kit import only

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

RUN = """
async def run(ctx):
    reply = await ctx.agent.session("solver").invoke("echo $((6 * 7)) | tee answer.txt; nice")
    ctx.publish_json("reply", {"text": reply["text"], "ok": reply["ok"]})
"""
EVALUATOR = """
import json, pathlib
def evaluate(inputs):
    reply = json.loads(pathlib.Path(inputs["artifacts"]["reply"]).read_text())
    passed = reply["text"].startswith("42")
    return {"status": "PASS" if passed else "FAIL", "metrics": {"last": reply["text"].split()[-1]}}
"""
REPLY = "artifacts: {publishable: [{id: reply, path: reply.json}]}\n"


@pytest.fixture
def lab(demo, pytester):
    """The example directory beside the data set, and a task whose prompt is a shell script."""
    shutil.copytree(EXAMPLES / "plugin-directory", pytester.path / "plugins" / "lab")
    demo.task("t", run=RUN, evaluator=EVALUATOR, roles=("solver",), more=REPLY)
    return demo


def test_the_directory_brings_a_box_an_executor_and_a_handler(lab, pytester):
    lab.profiles(
        "format: ageval.profiles/1\nenvironment: lab\nenvironment_options: {nice: 7}\nagent_profiles:\n"
        "  solver:\n    executor: lab\n    extensions: [{plugin: lab, options: {command: [sh, -e]}}]\n"
    )
    pytester.makeini("[pytest]\nageval_plugins = plugins\n")
    lab.pytest("datasets").assert_outcomes(passed=1)
    result = only(lab)
    assert result["metrics"]["last"] == "7"  # the box ran the command behind nice
    (attempt,) = lab.attempts()
    assert "# for the solver" in (attempt / "trajectory.jsonl").read_text()
    facts = json.loads((attempt / "summary.json").read_text())["facts"]
    assert {"role": "solver"} in [row.get("detail") for row in facts if row["name"] == "lab_line_added"]
    lock = json.loads((attempt / "lock.json").read_text())
    assert lock["locked"]["plugins"]["lab"].startswith("0.1.0 sha256:")


def test_the_command_line_names_it_too(lab):
    lab.pytest(
        "datasets", "--ageval-plugins=plugins/lab", "--box=lab", "--box-option=nice=3", "--agent=lab"
    ).assert_outcomes(passed=1)
    (attempt,) = lab.attempts()
    # A row of a profile asks for a handler; without one it takes no part.
    assert "lab_line_added" not in (attempt / "summary.json").read_text()


def test_without_the_option_there_is_no_such_box(lab):
    found = lab.pytest("datasets", "--box=lab", "--agent=nop")
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.fnmatch_lines(["*unknown_box*'lab'*"])


CHAIN = """
async def outer(ctx, value, nxt):
    result = await nxt(value + " outer-in")
    return result

def plain(ctx, value, nxt):
    ctx.box.exec(["touch", "made-by-a-plugin"])
    return nxt(value + " plain")

async def watch_setup(ctx, value, nxt):
    done = await ctx.host.exec(["test", "-e", "made-by-setup"], timeout_sec=10)
    ctx.record_fact("before_setup", done.exit_code)
    await nxt(value)
    done = await ctx.host.exec(["test", "-e", "made-by-setup"], timeout_sec=10)
    ctx.record_fact("after_setup", done.exit_code)

class Judge:
    async def evaluate(self, ctx):
        return {"status": "PASS", "metrics": {"judged_by": ctx.services["name"]}}

async def broken(ctx, value, nxt):
    raise RuntimeError("no summary today")

NAME = "a plugin"
"""
MANIFEST = """
format: ageval.plugin/1
plugin_id: chain
version: "1"
slots:
  exclusive: [{id: evaluation_runtime, entry: "chain_plugin:Judge"}]
  chain:
    - {id: before_agent_invoke, entry: "chain_plugin:outer", priority: 10}
    - {id: environment_setup, entry: "chain_plugin:watch_setup"}
    - {id: summary_enrich, entry: "chain_plugin:broken"}
exports: {services: [{id: name, entry: "chain_plugin:NAME"}]}
"""
SECOND = """
format: ageval.plugin/1
plugin_id: second
version: "1"
slots: {chain: [{id: before_agent_invoke, entry: "chain_second:plain", priority: 20}]}
plugin_requires: [{plugin_id: chain}]
inject: [{service: environment, capabilities: [exec]}, {service: name}]
"""


def write_plugin(root: Path, manifest: str, module: str, code: str) -> Path:
    (root / "src").mkdir(parents=True)
    (root / "plugin.yaml").write_text(manifest)
    (root / "src" / f"{module}.py").write_text(code)
    return root


def test_handlers_surround_the_slot_in_the_order_of_their_priority(demo, pytester):
    write_plugin(pytester.path / "plugins" / "a", MANIFEST, "chain_plugin", CHAIN)
    write_plugin(pytester.path / "plugins" / "b", SECOND, "chain_second", CHAIN)
    ask = 'async def run(ctx):\n    await ctx.agent.session("solver").invoke("go")\n'
    task = demo.task("t", run=ask, evaluator="def evaluate(inputs): 1 / 0\n", roles=("solver",))
    (task / "environment").mkdir()
    (task / "environment" / "setup.sh").write_text("touch /attempt/workspace/made-by-setup\n")
    demo.profiles(
        "format: ageval.profiles/1\nenvironment: local\nagent_profiles:\n"
        "  solver: {executor: nop, extensions: [{plugin: second}, {plugin: chain}]}\n"
    )
    demo.pytest("datasets", "--ageval-plugins=plugins", "--keep-workspace").assert_outcomes(passed=1)
    result = only(demo)
    assert result["metrics"] == {"judged_by": "a plugin"}
    assert Path(result["workspace"], "made-by-a-plugin").exists()
    (attempt,) = demo.attempts()
    assert "go outer-in plain" in (attempt / "trajectory.jsonl").read_text()
    facts = {
        row["name"]: row.get("detail") for row in json.loads((attempt / "summary.json").read_text())["facts"]
    }
    assert (facts["before_setup"], facts["after_setup"]) == ({"value": 1}, {"value": 0})
    assert facts["slot_failed_open"]["slot"] == "summary_enrich"


@pytest.mark.parametrize(
    ("change", "token", "words"),
    [
        (("before_agent_invoke", "before_agent_invok"), "plugin_contract", "did you mean"),
        (("chain_plugin:outer", "chain_plugin:gone"), "plugin_contract", "gone"),
        (("plugin_id: chain", "plugin_id: docker"), "plugin_contract", "taken"),
        (("plugin_id: chain", "plugin_idd: chain"), "invalid_schema", "plugin_id"),
        (("exports:", "inject: [{service: environment, capabilities: [compose]}]\nexports:"),
         "unsupported_capability", "compose"),
        (("exports:", "inject: [{service: printer}]\nexports:"), "plugin_requires_unsatisfied", "printer"),
        (("exports:", "plugin_requires: [{plugin_id: absent}]\nexports:"),
         "plugin_requires_unsatisfied", "absent"),
        (("exports:", "host_requires: [{import: no_such_module, hint: pip install it}]\nexports:"),
         "host_requires_unsatisfied", "pip install it"),
        (("exports:", "host_requires: [{file: missing.txt}]\nexports:"),
         "host_requires_unsatisfied", "missing.txt"),
        (("exports:", "config: {image_layers: Dockerfile}\nexports:"), "missing_reference", "Dockerfile"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_plugin_is_said(demo, pytester, change, token, words):
    text = MANIFEST.replace(*change)
    write_plugin(pytester.path / "plugins" / "a", text, "chain_plugin", CHAIN)
    ask = 'async def run(ctx):\n    await ctx.agent.session("solver").invoke("go")\n'
    demo.task("t", run=ask, roles=("solver",))
    demo.profiles(
        "format: ageval.profiles/1\nenvironment: local\nagent_profiles:\n"
        "  solver: {executor: nop, extensions: [{plugin: chain}]}\n"
    )
    found = demo.pytest("datasets", "--ageval-plugins=plugins")
    output = found.stdout.str() + found.stderr.str()
    assert found.ret != 0
    assert token in output
    assert words in output


def test_two_plugins_may_not_have_one_module(demo, pytester):
    write_plugin(pytester.path / "plugins" / "a", MANIFEST.replace("chain_plugin:", "json:"), "json", CHAIN)
    ask = 'async def run(ctx):\n    await ctx.agent.session("solver").invoke("go")\n'
    demo.task("t", run=ask, roles=("solver",))
    demo.profiles(
        "format: ageval.profiles/1\nenvironment: local\nagent_profiles:\n"
        "  solver: {executor: nop, extensions: [{plugin: chain}]}\n"
    )
    demo.pytest("datasets", "--ageval-plugins=plugins").stdout.fnmatch_lines(["*rename the module*"])


@pytest.mark.slow
def test_the_package_is_found_by_its_entry_point(demo, pytester):
    site = pytester.path / "site"
    source = shutil.copytree(EXAMPLES / "plugin-package", pytester.path / "package")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(source)]
    subprocess.run(install, check=True, timeout=300)
    task = demo.task("t", run=RUN, evaluator=EVALUATOR, roles=("solver",), more=REPLY)
    (task / "recorded.jsonl").write_text('"42 of a file"\n')
    environment = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    pytester._monkeypatch.setenv("PYTHONPATH", environment)
    demo.pytest(
        "datasets", "--box=limited", "--box-option=address_space_mb=2048", "--agent=recorded", "-n2"
    ).assert_outcomes(passed=1)
    (attempt,) = demo.attempts()
    plugins = json.loads((attempt / "lock.json").read_text())["locked"]["plugins"]
    assert plugins["ageval_lab.limited:LimitedBox"] == "ageval-lab 0.1.0"
