"""The tasks of datasets/harbor with the oracle, by `harbor` and by us: the same rewards, and what each costs.

    python -m benchmarks.harbor --docker-config DIR --times 3

Both get one copy of the tasks. `harbor` needs the compose plugin of Docker (2.x), which is looked for in
DIR/cli-plugins. Its containers without a network need images from a registry, so that ``network_mode`` is
left out of the copy. Images are built in a run before the first that counts. CPU seconds are those of the
client's process tree; the engine's are not among them.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import measure, peers

ROOT = Path(__file__).parents[1]
ENV = {"HARBOR_TELEMETRY": "0"}
Rewards = dict[str, dict[str, float]]


def copy_tasks(target: Path) -> Path:
    """The data set, as both can run it here."""
    ignored = shutil.ignore_patterns(".ageval", ".pytest_cache", "__pycache__")
    shutil.copytree(ROOT / "datasets" / "harbor", target, ignore=ignored)
    for file in target.glob("*/task.toml"):
        file.write_text(re.sub(r"(?m)^network_mode.*\n", "", file.read_text()))
    return target


def by_harbor(program: Path, tasks: Path, work: Path, at_once: int) -> tuple[measure.Cost, Rewards]:
    """One job."""
    jobs = Path(tempfile.mkdtemp(prefix="jobs-", dir=work))
    command = [str(program), "run", "-p", str(tasks), "-a", "oracle", "-n", str(at_once)]
    cost = measure.run([*command, "-o", str(jobs), "-y", "-q"], cwd=work, env=ENV)
    found = {}
    for path in jobs.glob("*/*/result.json"):
        trial = json.loads(path.read_text())
        found[trial["task_name"].rpartition("/")[2]] = (trial.get("verifier_result") or {}).get(
            "rewards"
        ) or {}
    return cost, found


def by_us(tasks: Path, work: Path, at_once: int) -> tuple[measure.Cost, Rewards]:
    """One session."""
    runs = tasks / ".ageval"
    shutil.rmtree(runs, ignore_errors=True)
    command = [sys.executable, "-m", "pytest", str(tasks), "--agent=oracle", "-q", "-p", "no:cacheprovider"]
    cost = measure.run([*command, f"-n{at_once if at_once > 1 else 0}"], cwd=work, env=ENV)
    found = {}
    for path in runs.glob("runs/*/result.json"):
        document = json.loads((path.parent / "evaluation" / "reward.json").read_text())
        rewards = [step["rewards"] for step in document["steps"]]
        names = {name for row in rewards for name in row}
        mean = {name: statistics.mean(row.get(name, 0.0) for row in rewards) for name in names}
        found[json.loads(path.read_text())["task_id"]] = mean
    return cost, found


def main() -> None:
    """Print a table; exit code 1 when the rewards are not the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    peers.add_option(parser)
    parser.add_argument("--docker-config", type=Path, help="a directory with cli-plugins/docker-compose")
    parser.add_argument("--times", type=int, default=3, help="runs of each, of which the median is shown")
    options = parser.parse_args()
    if options.docker_config is not None:
        ENV["DOCKER_CONFIG"] = str(options.docker_config.absolute())
    found = peers.find(["harbor"], options.peer_venv).get("harbor")
    if found is None:
        return
    program = Path(found.program)
    with tempfile.TemporaryDirectory(prefix="agb-") as directory:
        work = Path(directory)
        tasks = copy_tasks(work / "tasks")
        names = {path.parent.name for path in tasks.glob("*/task.toml")}
        by_us(tasks, work, 1), by_harbor(program, tasks, work, 4)
        print(f"{'':24}{'wall s':>8}{'worst':>8}{'CPU s':>8}{'peak MB':>9}  rewards")
        same = True
        for at_once in (1, 4):
            medians = {}
            for name in ("harbor", "pytest-ageval"):
                rows = [
                    by_harbor(program, tasks, work, at_once)
                    if name == "harbor"
                    else by_us(tasks, work, at_once)
                    for _ in range(options.times)
                ]
                costs, rewards = [row[0] for row in rows], rows[0][1]
                same &= all(row[1] == rewards for row in rows)
                medians[name] = (
                    statistics.median(c.wall for c in costs),
                    statistics.median(c.cpu for c in costs),
                )
                wall, cpu = medians[name]
                if name == "harbor":
                    theirs = rewards
                same &= set(rewards) == names and rewards == theirs
                shown = ", ".join(f"{task} {row.get('reward')}" for task, row in sorted(rewards.items()))
                print(
                    f"{f'{name}, {at_once} at once':24}{wall:8.1f}{max(c.wall for c in costs):8.1f}"
                    f"{cpu:8.1f}{max(c.peak_mb for c in costs):9.0f}  {shown}"
                )
            ratio = [medians["harbor"][i] / medians["pytest-ageval"][i] for i in (0, 1)]
            print(f"harbor / pytest-ageval, {at_once} at once: wall {ratio[0]:.1f}x, CPU {ratio[1]:.1f}x")
    print("the same rewards" if same else "the rewards differ")
    sys.exit(not same)


if __name__ == "__main__":
    main()
