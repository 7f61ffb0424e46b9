"""Links that an agent plants to have the evaluator read a hidden file."""

from pytest_ageval.attempt.links import remove_escaping_links, remove_outward_links


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
    assert sorted(remove_escaping_links(workspace, [tmp_path / "dataset"])) == [
        "hop",
        "report.json",
        "sub/all",
    ]
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
