"""`Run` and `Runs` over files that the writer made."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from rl_eventlog import EventWriter, Run, Runs
from rl_eventlog.errors import RunNotFoundError
from rl_eventlog.schema import table as table_schema
from rl_eventlog.segment.sealed import file_digest
from tests.support import reduce_oracle as oracle
from tests.support.rows import Writer


def open_writer(root: Path, rank: int | None = 0, **more: Any) -> EventWriter:
    options: dict[str, Any] = {"run": "r", "role": "trainer", "launch_id": "first", "world_size": 2} | more
    return EventWriter.open(root, rank=rank, **options)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two attempts of two trainers and an evaluation; the second attempt goes on from step 3."""
    root = tmp_path_factory.mktemp("runs")
    for launch, steps, resume in (("first", range(5), None), ("second", range(3, 6), 3)):
        for rank in range(2):
            with open_writer(root, rank, launch_id=launch, resume_step=resume, tags=["tag"], project="p") as log:
                log.log_hyperparams({"lr": 0.1 if launch == "first" else 0.2, "launch": launch})
                for step in steps:
                    log.log_metrics({"loss": step + rank / 2}, step=step, prefix="train", weight=1.0 + 2 * rank)
                    log.log_metrics({"tokens": 10}, step=step, prefix="train", reduce="sum")
                    log.log_metrics({"rank/loss": float(rank)}, step=step, reduce="none")
                    log.log_timing("work", 1.0 + rank, step)
                    log.log_timing("work", 0.5, step)
                log.log_samples([{"prompt": "1+1", "response": launch, "reward": 1.0}], step=3)
                log.mark("checkpoint", step=2)
    with open_writer(root, 0, role="eval", launch_id="evaluation", world_size=1) as log:
        log.log_metrics({"train/loss": 9.0, "accuracy": 0.5}, step=4)
    return root / "r"


@pytest.fixture
def run(path: Path) -> Run:
    return Run(path)


def values(frame: pl.LazyFrame) -> list[tuple[int, float]]:
    return frame.sort("step").select("step", "value").collect().rows()


def test_metrics_are_merged_over_ranks_and_attempts(run: Run) -> None:
    expected = [(step, step + 0.375) for step in range(6)]  # weights 1 and 3, values step and step + 0.5
    assert values(run.metrics("train/loss", role="trainer")) == expected
    assert values(run.metrics("train/tokens")) == [(step, 20.0) for step in range(6)]
    attempts = run.metrics("train/tokens").sort("step").collect()["attempt"].to_list()
    assert attempts == [1, 1, 1, 2, 2, 2]


def test_metrics_agree_with_the_oracle_over_raw_rows(run: Run) -> None:
    rows = run.metrics(ranks="each", attempts="all").collect()
    raw = [row | {"axis_value": None} for row in rows.to_dicts()]
    writers = [
        Writer(w["writer"], w["role"], w["rank"], attempt=w["attempt"], resume_step=w["resume_step"])
        for w in run.files.identities().to_dicts()
    ]
    view = oracle.view(oracle.known(raw, writers), writers, ("name", "axis", "position"), "latest", "last")
    columns = run.metrics().collect_schema().names()
    expected = sorted(tuple(row[column] for column in columns) for row in oracle.merge_metrics(view))
    found = sorted(run.metrics().collect().rows())
    assert [row[:6] + row[7:] for row in found] == [row[:6] + row[7:] for row in expected]
    assert [row[6] for row in found] == pytest.approx([row[6] for row in expected], rel=1e-12)


def test_reduced_frames_come_ready_to_be_plotted(run: Run) -> None:
    for frame, keys in (
        (run.metrics(), ["role", "name", "axis", "position", "attempt"]),
        (run.timings(attempts="all"), ["role", "name", "step", "attempt"]),
        (run.hparams(), ["role", "key"]),
    ):
        collected = frame.collect()
        assert collected.height > 1
        assert collected.equals(collected.sort(keys, maintain_order=True))


def test_names_are_chosen_by_globs_lists_and_role(run: Run) -> None:
    def names(*args: Any, **options: Any) -> set[str]:
        return set(run.metrics(*args, **options).collect()["name"])

    assert names() == {"train/loss", "train/tokens", "accuracy"}
    assert names("train/*") == {"train/loss", "train/tokens"}
    assert names(["accuracy", "*/loss"]) == {"accuracy", "train/loss"}
    assert names("loss") == set()
    assert names("train/*", role="eval") == {"train/loss"}
    assert set(run.timings("w*").collect()["name"]) == {"work"}
    assert run.markers("check*").collect().height == 4
    assert run.markers("finished").collect().height == 0


def test_every_rank_and_attempt_can_be_seen(run: Run) -> None:
    each = run.metrics("train/loss", ranks="each", attempts="all", role="trainer").collect()
    assert each.height == 16
    at_three = each.filter(step=3).sort("attempt", "rank").select("attempt", "rank", "value", "weight").rows()
    assert at_three == [(1, 0, 3.0, 1.0), (1, 1, 3.5, 3.0), (2, 0, 3.0, 1.0), (2, 1, 3.5, 3.0)]
    assert run.metrics("rank/loss", ranks="each").collect().height == 12
    assert run.metrics("rank/loss").collect().height == 0
    assert run.metrics("train/loss", attempts="all", role="trainer").collect().height == 8


def test_stragglers_and_phases_of_a_run_and_of_many(run: Run) -> None:
    slowest = run.stragglers("w*", role="trainer").collect()
    columns = ["rank", "steps", "slowest_share", "lost_seconds", "median_ratio"]
    assert slowest.select(columns).rows() == [(1, 6, 1.0, 6.0, 2.5 / 1.5), (0, 6, 0.0, 0.0, 1.0)]
    assert run.stragglers(attempts="all").collect()["steps"].to_list() == [8, 8]
    assert run.phases("w*").select("step", "seconds", "share").collect().rows() == [(n, 2.0, 1.0) for n in range(6)]
    (over_steps,) = run.phases(per="run").collect().to_dicts()
    assert (over_steps["name"], over_steps["steps"], over_steps["seconds"]) == ("work", 6, 12.0)
    assert run.phases(whole="never").collect()["share"].to_list() == [None] * 6
    assert run.phases("never").collect().is_empty()
    runs = Runs(run.path.parent)
    for frame in (runs.stragglers(), runs.phases(), runs.phases(per="run")):
        found = frame.collect()
        assert found.columns[0] == "run"
        assert set(found["run"]) == {"r"}
    with pytest.raises(ValueError, match="per='rank': give one of 'step', 'run'"):
        run.phases(per="rank")  # type: ignore[arg-type]


def test_timings_add_up_per_rank_and_the_slowest_counts(run: Run) -> None:
    rows = run.timings().sort("step").collect()
    columns = ("step", "duration_seconds", "mean_seconds", "slowest_rank", "count", "ranks", "attempt")
    assert rows.select(columns).row(3) == (3, 2.5, 2.0, 1, 4, 2, 2)
    each = run.timings(ranks="each", attempts="all").collect()
    assert each.height == 16
    assert set(each["duration_seconds"]) == {1.5, 2.5}


def test_hparams_are_the_latest_or_all(run: Run) -> None:
    latest = run.hparams().select("role", "key", "value", "attempt").collect().rows()
    assert latest == [("trainer", "launch", '"second"', 2), ("trainer", "lr", "0.2", 2)]
    history = run.hparams(history=True).collect().filter(key="lr")
    assert history["value"].to_list() == ["0.1", "0.1", "0.2", "0.2"]
    assert set(history.select("attempt", "rank").rows()) == {(1, 0), (1, 1), (2, 0), (2, 1)}


def test_samples_of_the_latest_attempt_hold(run: Run) -> None:
    assert set(run.samples().collect().select("response", "attempt").rows()) == {("second", 2)}
    assert run.samples(attempts="all").collect().height == 4


@pytest.mark.parametrize("table", ["samples", "markers", "gpu_samples", "artifacts"])
def test_other_tables_have_their_columns_and_the_attempt(run: Run, table: str) -> None:
    frame: pl.LazyFrame = getattr(run, table)()
    assert frame.collect().columns == [*table_schema(table).sealed.names, "attempt"]


def test_distributions_of_each_rank_have_the_columns_of_the_table_and_the_attempt(run: Run) -> None:
    frame = run.distributions(ranks="each", attempts="all")
    assert frame.collect().columns == [*table_schema("distributions").sealed.names, "attempt"]


def test_a_frontier_limits_what_is_seen(run: Run) -> None:
    last = run.files.last_seqs("metrics")
    everything = run.metrics(ranks="each", attempts="all").collect()
    assert run.metrics(ranks="each", attempts="all", frontier={"metrics": last}).collect().height == everything.height
    writer = everything.filter(role="trainer", attempt=1)["writer"][0]
    seen = run.metrics(ranks="each", attempts="all", frontier={"metrics": {writer: 2}}).collect()
    assert sorted(seen.select("writer", "seq").rows()) == [(writer, seq) for seq in range(3)]
    assert run.timings(frontier={"metrics": last}).collect().height == 0


def test_an_argument_that_means_nothing_is_refused(run: Run) -> None:
    with pytest.raises(ValueError, match="ranks='all': give one of 'reduced', 'each'"):
        run.metrics(ranks="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="attempts='newest': give one of 'latest', 'all'"):
        run.samples(attempts="newest")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="check='all'"):
        Run(run.path, check="all")  # type: ignore[arg-type]


def test_info_says_what_the_run_is(run: Run) -> None:
    info = run.info
    assert (info.name, info.project, info.tags, info.path) == ("r", "p", ("tag",), run.path)
    assert info.run_uid == json.loads((run.path / "run.json").read_bytes())["run_uid"]
    assert info.state == "finished"
    assert [(a.attempt, a.launch, a.roles, a.last_step) for a in info.attempts] == [
        (1, "first", ("trainer",), 4),
        (2, "second", ("trainer",), 5),
        (3, "evaluation", ("eval",), 4),
    ]
    assert [(r.role, r.attempt, r.state, r.ranks_seen, r.ranks_expected, r.last_step) for r in info.roles] == [
        ("eval", 3, "finished", 1, 1, 4),
        ("trainer", 2, "finished", 2, 2, 5),
    ]
    assert [(r.role, r.rank, r.reason, r.last_step) for r in info.ranks] == [
        ("eval", 0, "ended: finished", 4),
        ("trainer", 0, "ended: finished", 5),
        ("trainer", 1, "ended: finished", 5),
    ]
    assert len(info.nodes) == 1
    assert info.rows["metrics"] == sum(run.files.last_seqs("metrics").values()) + 5
    assert (info.gaps, info.problems, info.rows_at_risk, info.rows_lost) == ((), (), 0, 0)


def test_info_says_when_the_run_was_alive(run: Run) -> None:
    info = run.info
    times = run.metrics(ranks="each", attempts="all").collect()["time"]
    first, last = times.min(), times.max()
    assert isinstance(first, datetime)
    assert isinstance(last, datetime)
    assert info.started is not None
    assert info.last_seen is not None
    assert info.started <= first <= last <= info.last_seen <= info.read
    assert {info.started.tzinfo, info.last_seen.tzinfo, info.attempts[0].started.tzinfo} == {timezone.utc}


def test_warnings_name_what_differs(run: Run) -> None:
    assert run.warnings().select("kind", "role", "name").rows() == [
        ("hparam_changed", "trainer", "launch"),
        ("hparam_changed", "trainer", "lr"),
    ]


def test_expected_ranks_that_never_came_are_named(tmp_path: Path) -> None:
    for rank in (0, 2):
        open_writer(tmp_path, rank, world_size=4).close()
    (role,) = Run(tmp_path / "r").info.roles
    assert (role.ranks_seen, role.ranks_expected, role.ranks_missing) == (2, 4, (1, 3))


def test_resume_steps_that_differ_between_ranks_are_reported(tmp_path: Path) -> None:
    for rank in range(2):
        open_writer(tmp_path, rank, resume_step=3 + rank).close()
    detail = "attempt 1: ranks declare 3, 4; the lowest counts"
    assert Run(tmp_path / "r").warnings().rows() == [("resume_step_differs", "trainer", None, detail)]


def test_a_run_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    with open_writer(tmp_path) as log:
        log.log_metrics({"loss": 1.0}, step=0)
        run = Run(tmp_path / "r")
        before = run.metrics()
        assert values(before) == [(0, 1.0)]
        assert (run.info.state, run.info.roles[0].last_step) == ("running", 0)
        log.log_metrics({"loss": 2.0}, step=1)
        assert values(run.refresh().metrics()) == [(0, 1.0), (1, 2.0)]
        assert values(before) == [(0, 1.0)]
        assert run.info.roles[0].last_step == 1
    assert run.refresh().info.state == "finished"
    assert values(run.metrics()) == [(0, 1.0), (1, 2.0)]


def test_a_missing_segment_is_a_gap_and_a_damaged_one_a_problem(tmp_path: Path) -> None:
    for rank in range(2):
        with open_writer(tmp_path, rank) as log:
            for step in range(4):
                log.log_metrics({"loss": 1.0}, step=step)
            log.log_timing("work", 1.0, 0)
    run = Run(tmp_path / "r")
    by_writer = {path.name[:26]: path for path in run.path.glob("events/metrics/*/*.parquet")}
    gone, torn = sorted(by_writer)
    by_writer[gone].unlink()
    by_writer[torn].write_bytes(by_writer[torn].read_bytes()[:-40])
    info = run.refresh().info
    assert {(gap.table, gap.writer, gap.first, gap.last) for gap in info.gaps} == {
        ("metrics", gone, 0, 3),
        ("metrics", torn, 0, 3),
    }
    assert [problem.path for problem in info.problems] == [by_writer[torn]]
    assert run.metrics().collect().height == 0
    assert run.timings().collect()["ranks"].to_list() == [2]


def test_a_digest_check_finds_what_a_footer_hides(tmp_path: Path) -> None:
    with open_writer(tmp_path) as log:
        log.log_metrics({"loss": 1.0}, step=0)
    (sealed,) = (tmp_path / "r").glob("events/metrics/*/*.parquet")
    content = bytearray(sealed.read_bytes())
    content[20] ^= 1
    sealed.write_bytes(content)
    assert Run(tmp_path / "r").info.problems == ()
    checked = Run(tmp_path / "r", check="digest").info
    assert [problem.path for problem in checked.problems] == [sealed]
    assert checked.gaps[0].table == "metrics"


def test_a_path_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="no run of rl-eventlog"):
        Run(tmp_path / "nothing")


def test_many_runs_are_one_frame_with_a_run_column(tmp_path: Path) -> None:
    for name, loss in (("a", 1.0), ("b", 2.0)):
        with open_writer(tmp_path, run=name) as log:
            log.log_metrics({"loss": loss}, step=0)
            log.log_hyperparams({"lr": loss})
    runs = Runs(tmp_path)
    assert (runs.names, len(runs), runs.problems) == (["a", "b"], 2, [])
    assert [run.name for run in runs] == ["a", "b"]
    frame = runs.metrics("loss").sort("run").collect()
    assert frame.columns == ["run", *Run(tmp_path / "a").metrics().collect_schema().names()]
    assert frame.select("run", "value").rows() == [("a", 1.0), ("b", 2.0)]
    assert set(runs.hparams().collect().select("run", "value").rows()) == {("a", "1.0"), ("b", "2.0")}
    assert runs["b"].metrics().collect()["value"].to_list() == [2.0]


def test_a_bad_folder_is_reported_and_the_others_are_used(tmp_path: Path) -> None:
    for name in ("newer", "segment", "good"):
        with open_writer(tmp_path, run=name) as log:
            log.log_metrics({"loss": 1.0}, step=0)
    (document,) = (path for path in (tmp_path / "newer" / "writers").glob("*.json") if path.name.count(".") == 1)
    document.write_text(document.read_text().replace('"format_version": "1.0"', '"format_version": "2.0"'))
    (sealed,) = (tmp_path / "segment").glob("events/metrics/*/*.parquet")
    rows = pq.read_table(sealed)
    pq.write_table(rows.replace_schema_metadata({**rows.schema.metadata, b"rle.version": b"2.0"}), sealed)
    sealed.rename(sealed.with_name(f"{sealed.name.rsplit('.', 2)[0]}.{file_digest(sealed)[:16]}.parquet"))
    (tmp_path / "no-run").mkdir()
    runs = Runs(tmp_path)
    assert runs.names == ["good", "segment"]
    assert [problem.path.name for problem in runs.problems] == ["newer"]
    for _ in range(2):
        assert runs.metrics().collect()["run"].to_list() == ["good"]
        assert [problem.path.name for problem in runs.problems] == ["newer", "segment"]
        assert all("upgrade rl-eventlog" in problem.reason for problem in runs.problems)
    assert runs.timings().collect().height == 0


def test_a_folder_without_runs_gives_empty_frames(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    assert len(runs) == 0
    frame = runs.metrics().collect()
    assert frame.height == 0
    assert frame.columns[:3] == ["run", "role", "name"]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="no such folder"):
        Runs(tmp_path / "nothing")


def test_a_notebook_that_opens_its_run_again_is_one_rank(tmp_path: Path) -> None:
    for value in (1.0, 3.0):
        with EventWriter.open(tmp_path, run="notebook") as log:
            log.log_metrics({"loss": value}, step=0)
    merged = Run(tmp_path / "notebook").metrics("loss").collect()
    assert merged.select("value", "ranks", "attempt").rows() == [(3.0, 1, 1)]
