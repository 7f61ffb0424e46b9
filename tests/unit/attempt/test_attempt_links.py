"""Links that an agent plants to have the evaluator read a hidden file."""

from pathlib import Path

from pytest_ageval.attempt.links import identity, remove_escaping_links, remove_outward_links


def test_links_into_the_gold_are_removed_and_others_stay(tmp_path):
    gold = tmp_path / "dataset" / "evaluation"
    gold.mkdir(parents=True)
    (gold / "expected.json").write_text("{}")
    workspace = tmp_path / "workspace"
    (workspace / "sub").mkdir(parents=True)
    (workspace / "report.json").symlink_to(gold / "expected.json")
    (workspace / "sub" / "all").symlink_to("../../dataset")
    (workspace / "hop").symlink_to("report.json")
    (workspace / "python").symlink_to("/usr/bin/env")
    (workspace / "dangling").symlink_to("/nowhere/at/all")
    (workspace / "boxed").symlink_to("/attempt/evaluation/expected.json")
    (workspace / "own").symlink_to("/attempt/workspace/sub")
    (workspace / "odd").symlink_to("/attempt/home/../evaluation/expected.json")

    def in_box(path):
        return tmp_path / Path(path).relative_to("/attempt")

    removed = remove_escaping_links(workspace, [workspace], [tmp_path], in_box)
    assert sorted(removed) == ["boxed", "hop", "odd", "report.json", "sub/all"]
    assert (workspace / "own").is_symlink()
    assert (workspace / "python").is_symlink()
    assert (workspace / "dangling").is_symlink()
    assert (gold / "expected.json").read_text() == "{}"


def test_artifacts_hold_no_link_that_leads_out(tmp_path):
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    (artifacts / "real.txt").write_text("x")
    (artifacts / "inner").symlink_to("real.txt")
    (artifacts / "outer").symlink_to("/etc/hostname")
    assert remove_outward_links(artifacts) == ["outer"]
    assert (artifacts / "inner").read_text() == "x"


def test_a_directory_that_is_a_link_is_not_walked(tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "outer").symlink_to("/etc/hostname")
    (tmp_path / "workspace").symlink_to(victim)
    assert remove_outward_links(tmp_path / "workspace") == []
    assert (victim / "outer").is_symlink()
    assert identity(tmp_path / "workspace") is None
    assert identity(victim) is not None
