"""`ls`, `show` and `samples`: what they print of real runs, good and damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rl_eventlog import EventWriter
from rl_eventlog.ids import new_ulid
from tests.support.cli import rleventlog
from tests.support.small_runs import HOSTILE, damage, damage_a_page, of_newer_version, one_rank, two_ranks

pytestmark = pytest.mark.integration


def sealed(run: Path, table: str) -> list[Path]:
    return sorted((run / "events" / table).rglob("*.parquet"))


# -- ls ------------------------------------------------------------------------------------------


def test_ls_prints_a_line_a_run(tmp_path: Path) -> None:
    two_ranks(tmp_path, "pair")
    one_rank(tmp_path, "single", {"loss": 1.0}, step=9)
    result = rleventlog("ls", tmp_path, "--utc")
    assert (result.status, result.err) == (0, "")
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["run", "state", "attempts", "ranks", "step", "started", "age"]
    assert lines[1][:6] == ["pair", "finished", "1", "trainer", "2/2", "3"]
    assert lines[2][:3] == ["single", "finished", "1"]
    assert "+00:00" in result.out


def test_ls_json_is_what_the_documentation_says(tmp_path: Path) -> None:
    path = two_ranks(tmp_path, "pair")
    document = rleventlog("ls", tmp_path, "--json").json()
    assert set(document) == {"root", "runs", "problems"}
    assert document["root"] == str(tmp_path)
    assert document["problems"] == []
    (run,) = document["runs"]
    assert run.pop("started").endswith("Z")
    assert run.pop("last_seen").endswith("Z")
    assert 0.0 <= run.pop("age_seconds") < 600.0
    assert len(run.pop("run_uid")) == 26
    assert run == {
        "name": "pair",
        "path": str(path),
        "project": "tests",
        "group": "pair",
        "tags": ["quick"],
        "state": "finished",
        "ended_by": [],
        "attempts": 1,
        "roles": [{"role": "trainer", "state": "finished", "ranks_seen": 2, "ranks_expected": 2}],
        "last_step": 3,
        "damaged_files": 0,
        "gaps": 0,
    }


def test_ls_looks_in_the_folder_of_the_environment_else_in_runs(tmp_path: Path) -> None:
    two_ranks(tmp_path / "elsewhere", "one")
    two_ranks(tmp_path / "here" / "runs", "two")
    (tmp_path / "here").mkdir(exist_ok=True)
    before = Path.cwd()
    os.chdir(tmp_path / "here")
    try:
        assert [run["name"] for run in rleventlog("ls", "--json").json()["runs"]] == ["two"]
        os.environ["RLEVENTLOG_DIR"] = str(tmp_path / "elsewhere")
        assert [run["name"] for run in rleventlog("ls", "--json").json()["runs"]] == ["one"]
    finally:
        os.chdir(before)


def test_ls_of_nothing_says_so(tmp_path: Path) -> None:
    result = rleventlog("ls", tmp_path)
    assert (result.status, result.out) == (0, "")
    assert str(tmp_path) in result.err
    missing = rleventlog("ls", tmp_path / "missing")
    assert missing.status == 1
    assert str(tmp_path / "missing") in missing.err


def test_ls_shows_the_others_beside_a_run_that_cannot_be_read(tmp_path: Path) -> None:
    two_ranks(tmp_path, "good")
    bad = of_newer_version(tmp_path, "newer")
    result = rleventlog("ls", tmp_path)
    assert result.status == 1
    assert "good" in result.out
    assert str(bad) in result.err
    assert "2.0" in result.err


# -- show ----------------------------------------------------------------------------------------


def test_show_prints_states_values_and_hyperparameters(tmp_path: Path) -> None:
    result = rleventlog("show", two_ranks(tmp_path), "--ranks", "--utc")
    assert (result.status, result.err) == (0, "")
    rows = [line.split() for line in result.out.splitlines()]
    assert rows[0] == ["small", "finished"]
    assert ["trainer", "finished", "2", "of", "2", "1", "1", "3"] in rows
    assert ["trainer", "algorithm.lr", "0.5"] in rows
    # the mean of 1/4 and 2/4 over the ranks, the sum of tokens
    assert ["trainer", "train/loss", "0.375", "3", "2"] in rows
    assert ["trainer", "train/tokens", "20", "3", "2"] in rows
    assert [row[:3] for row in rows if row[:1] == ["trainer"] and "ended:" in row] == [
        ["trainer", "0", "finished"],
        ["trainer", "1", "finished"],
    ]


def test_show_json_is_what_the_documentation_says(tmp_path: Path) -> None:
    path = two_ranks(tmp_path)
    document = rleventlog("show", path, "--json").json()
    assert document["path"] == str(path)
    assert document["state"] == "finished"
    assert document["rows"] == {"metrics": 16, "timings": 8, "hparams": 2, "markers": 1}
    assert [(one["attempt"], one["last_step"], one["roles"]) for one in document["attempts"]] == [(1, 3, ["trainer"])]
    assert [(one["role"], one["ranks_seen"], one["ranks_expected"]) for one in document["roles"]] == [("trainer", 2, 2)]
    assert [(one["rank"], one["state"]) for one in document["ranks"]] == [(0, "finished"), (1, "finished")]
    assert [(one["key"], one["value"]) for one in document["hparams"]] == [("algorithm.lr", "0.5"), ("model", '"tiny"')]
    metrics = {one["name"]: one for one in document["metrics"]}
    assert metrics["train/loss"]["value"] == 0.375
    assert metrics["train/loss"]["position"] == 3.0
    assert metrics["train/loss"]["time"].endswith("Z")
    assert document["gaps"] == document["damaged_files"] == document["findings"] == document["warnings"] == []
    assert set(document) == {
        "name",
        "path",
        "run_uid",
        "project",
        "group",
        "tags",
        "notes",
        "state",
        "ended_by",
        "started",
        "last_seen",
        "nodes",
        "rows",
        "rows_at_risk",
        "rows_lost",
        "attempts",
        "roles",
        "ranks",
        "stalls",
        "hparams",
        "metrics",
        "gaps",
        "damaged_files",
        "findings",
        "thresholds",
        "warnings",
    }


def test_values_that_json_has_no_number_for_are_strings(tmp_path: Path) -> None:
    path = one_rank(tmp_path, "odd", {"a": float("nan"), "b": float("inf"), "c": float("-inf"), "d": 0.0})
    metrics = rleventlog("show", path, "--json").json()["metrics"]
    assert [one["value"] for one in metrics] == ["NaN", "Infinity", "-Infinity", 0.0]
    shown = rleventlog("show", path).out
    assert all(name in shown for name in ("NaN", "Infinity", "-Infinity"))


def test_show_can_be_limited_to_some_metrics(tmp_path: Path) -> None:
    path = two_ranks(tmp_path)
    names = [one["name"] for one in rleventlog("show", path, "--metric", "*/tok*", "--json").json()["metrics"]]
    assert names == ["train/tokens"]


def test_show_names_a_glob_that_matches_nothing_and_says_what_there_is(tmp_path: Path) -> None:
    result = rleventlog("show", two_ranks(tmp_path), "--metric", "eval/*", "--metric", "train/loss")
    assert result.status == 0
    assert result.err == "no metric matches 'eval/*': there are train/loss, train/tokens\n"
    assert "train/loss" in result.out


def test_what_merging_had_to_decide_is_a_warning_without_a_status(tmp_path: Path) -> None:
    with EventWriter.open(tmp_path, run="odd", role="trainer", rank=0, capture_diff=False) as log:
        log.log_metrics({"loss": 1.0, "tokens": 2.0}, step=0, reduce={"tokens": "sideways"})
    result = rleventlog("show", log.path)
    assert result.status == 0
    assert "warning: unknown reduction: trainer tokens: " in result.err
    document = rleventlog("show", log.path, "--json").json()
    assert [(one["kind"], one["role"], one["name"]) for one in document["warnings"]] == [
        ("unknown_reduction", "trainer", "tokens")
    ]
    assert document["findings"] == []


def test_the_exception_by_which_a_run_ended_is_shown(tmp_path: Path) -> None:
    def train() -> None:
        with EventWriter.open(tmp_path, run="failed", role="trainer", rank=0, capture_diff=False) as log:
            log.log_metrics({"loss": 1.0}, step=0)
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        train()
    path = tmp_path / "failed"
    shown = rleventlog("show", path)
    assert shown.status == 0
    assert shown.out.splitlines()[0].split() == ["failed", "finished:", "ValueError"]
    assert ["trainer", "finished:", "ValueError"] in [line.split()[:3] for line in shown.out.splitlines()]
    assert "finished: ValueError" in rleventlog("ls", tmp_path).out
    document = rleventlog("show", path, "--json").json()
    assert (document["state"], document["ended_by"]) == ("finished", ["ValueError"])
    assert rleventlog("ls", tmp_path, "--json").json()["runs"][0]["ended_by"] == ["ValueError"]


def test_show_names_a_damaged_file_and_shows_the_rest(tmp_path: Path) -> None:
    path = two_ranks(tmp_path)
    broken, _ = sealed(path, "metrics")
    damage(broken)
    result = rleventlog("show", path)
    assert result.status == 1
    assert str(broken) in result.err
    assert "gap: metrics" in result.err
    assert "seqs 0 to 7" in result.err
    assert ["train/tokens", "10", "3", "1"] in [line.split()[1:] for line in result.out.splitlines()]
    document = rleventlog("show", path, "--json").json()
    assert [one["path"] for one in document["damaged_files"]] == [str(broken)]
    assert [(one["table"], one["first"], one["last"]) for one in document["gaps"]] == [("metrics", 0, 7)]


def test_a_file_damaged_behind_its_footer_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    path = two_ranks(tmp_path)
    one_rank(tmp_path, "whole", {"loss": 1.0})
    broken, _ = sealed(path, "metrics")
    damage_a_page(broken)
    result = rleventlog("show", path)
    assert result.status == 1
    assert f"damaged: {broken}: its content does not match the digest in its name" in result.err
    assert ["train/tokens", "10", "3", "1"] in [line.split()[1:] for line in result.out.splitlines()]
    listed = rleventlog("ls", tmp_path, "--json")
    assert listed.status == 0
    named = {run["name"]: run["damaged_files"] for run in listed.json()["runs"]}
    assert named == {"small": 0, "whole": 0}, "it looks at footers, so that thousands of runs are listed at once"


def test_samples_in_a_damaged_file_are_missed_and_it_is_named(with_samples: Path) -> None:
    with EventWriter.open(with_samples.parent, run="samples", role="trainer", rank=1, capture_diff=False) as log:
        log.log_samples([{"prompt": "whole", "response": "there"}], step=9)
    broken = next(file for file in sealed(with_samples, "samples") if log.writer_id not in file.name)
    damage_a_page(broken)
    result = rleventlog("samples", with_samples, "--json")
    assert result.status == 1
    assert str(broken) in result.err
    assert [sample["response"] for sample in result.json()["samples"]] == ["there"]


def test_a_segment_whose_writer_was_killed_before_its_first_row_is_no_damage(tmp_path: Path) -> None:
    path = two_ranks(tmp_path)
    (sealed_marker,) = sealed(path, "markers")
    sealed_marker.with_name(f"{new_ulid()}-0.arrows").touch()
    assert rleventlog("show", path).status == 0


def test_a_path_that_is_no_run_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no run")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "file"):
        for command in ("show", "samples"):
            result = rleventlog(command, path)
            assert (result.status, result.out) == (1, ""), path
            assert f"{path}: no run" in result.err
            assert "Traceback" not in result.err


def test_a_bare_name_is_answered_with_the_folder_of_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    two_ranks(tmp_path / "runs", "small")
    for command in (["show", "small"], ["samples", "small"], ["sync", "small", "--to", "tensorboard"]):
        result = rleventlog(*command)
        assert result.status == 1, command
        assert result.err.endswith("; try runs/small\n"), command
    assert "try" not in rleventlog("show", "other").err


def test_a_newer_major_version_is_refused_clearly(tmp_path: Path) -> None:
    path = of_newer_version(tmp_path, "newer")
    for command in ("show", "samples"):
        result = rleventlog(command, path)
        assert result.status == 1
        assert str(path) in result.err
        assert "2.0" in result.err


# -- samples -------------------------------------------------------------------------------------


@pytest.fixture
def with_samples(tmp_path: Path) -> Path:
    """Rewards 0 to 3 at step 1, 10 to 13 at step 2, and one NaN there."""
    with EventWriter.open(tmp_path, run="samples", role="trainer", rank=0, capture_diff=False) as log:
        for step in (1, 2):
            log.log_samples(
                [
                    {"prompt": f"question {n}", "response": f"answer {step}.{n}", "reward": 10.0 * (step - 1) + n}
                    for n in range(4)
                ],
                step=step,
            )
        log.log_samples([{"prompt": "none", "response": "?", "reward": float("nan")}], step=2)
        log.log_samples([{"prompt": "rolled", "response": "out", "reward": 5.0}], step=7, split="rollout")
    return log.path


def responses(*arguments: str | Path) -> list[str]:
    return [sample["response"] for sample in rleventlog("samples", *arguments, "--json").json()["samples"]]


def test_samples_are_those_of_the_last_step_of_each_split(with_samples: Path) -> None:
    assert responses(with_samples) == ["out", "answer 2.0", "answer 2.1", "answer 2.2", "answer 2.3", "?"]
    assert responses(with_samples, "--split", "validation", "--limit", "2") == ["answer 2.0", "answer 2.1"]


def test_samples_can_be_chosen_by_step_prompt_and_reward(with_samples: Path) -> None:
    assert responses(with_samples, "--step", "1") == [f"answer 1.{n}" for n in range(4)]
    assert responses(with_samples, "--prompt", "question 3") == ["answer 1.3", "answer 2.3"]
    assert responses(with_samples, "--step", "1", "--best", "2") == ["answer 1.3", "answer 1.2"]
    assert responses(with_samples, "--step", "1", "--worst", "1") == ["answer 1.0"]


def test_where_no_sample_matches_the_splits_and_steps_there_are_are_named(with_samples: Path) -> None:
    result = rleventlog("samples", with_samples, "--step", "3", "--split", "validation")
    assert (result.status, result.out) == (0, "")
    assert result.err == (
        "0 of 0 matching samples\nsamples there are: rollout at step 7; validation at step 1, step 2\n"
    )


def test_samples_with_a_prompt_id_are_found_by_it(with_samples: Path) -> None:
    first = rleventlog("samples", with_samples, "--step", "1", "--json").json()["samples"][0]
    assert responses(with_samples, "--prompt", first["prompt_id"]) == ["answer 1.0", "answer 2.0"]


def test_best_and_worst_leave_out_what_has_no_reward_and_say_so(with_samples: Path) -> None:
    result = rleventlog("samples", with_samples, "--step", "2", "--best", "9", "--json")
    document = result.json()
    assert document["matching"] == 5
    assert [sample["reward"] for sample in document["samples"]] == [13.0, 12.0, 11.0, 10.0]
    assert "left out 1 without a reward" in result.err
    both = rleventlog("samples", with_samples, "--best", "1", "--worst", "1")
    assert both.status == 2


def test_samples_are_shown_with_their_texts_apart(with_samples: Path) -> None:
    result = rleventlog("samples", with_samples, "--step", "1", "--best", "1", "--utc")
    assert result.status == 0
    heading, *texts = [line.rstrip() for line in result.out.splitlines() if line.strip()]
    assert heading.startswith("step 1 · validation · trainer 0 · ")
    assert " · reward 3 · " in heading
    assert [line.split(maxsplit=1) for line in texts] == [["prompt", "question 3"], ["response", "answer 1.3"]]
    assert "1 of 4 matching samples" in result.err


def test_hostile_samples_are_harmless_and_complete(tmp_path: Path) -> None:
    forged = "fine\nstep 9 · validation · trainer 0 · reward 1"
    messages = [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": forged}]
    with EventWriter.open(tmp_path, run="evil", role="trainer", rank=0, capture_diff=False) as log:
        log.log_samples([{"messages": messages, "response": HOSTILE, "finish_reason": HOSTILE}], step=0)
    shown = rleventlog("samples", log.path).out
    escaped = r"\x1b[2J\x1b]0;owned\x07[red]markup[/red]\r\u202egnp.exe\x9b31m"
    assert shown.count(escaped) == 3
    assert not set(shown) & set("\x1b\x07\r\u202e\x9b")
    # a line of a text stands in the column of texts and cannot pass for a heading
    assert [line for line in shown.splitlines() if line.startswith("step")] == [shown.splitlines()[0]]
    (sample,) = rleventlog("samples", log.path, "--json").json()["samples"]
    assert sample["response"] == HOSTILE
    assert [message["content"] for message in sample["messages"]] == [HOSTILE, forged]


def test_a_run_without_samples_is_no_error(tmp_path: Path) -> None:
    result = rleventlog("samples", two_ranks(tmp_path))
    assert (result.status, result.out) == (0, "")
    assert "0 of 0" in result.err
