"""Rows above 64 KiB: encoded and written by a thread, bounded in memory, thinned where the user says so."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch

from rl_eventlog import EventWriter
from rl_eventlog.errors import OptionError
from rl_eventlog.writer import calls, deferred
from rl_eventlog.writer.distributions import sketch
from tests.support.raw import assert_dense, raw_rows

Row = dict[str, Any]
TOKENS = 4000


def enter(root: Path, **options: Any) -> EventWriter:
    return EventWriter.open(root, run="run", role="trainer", rank=0, capture_diff=False, **options)


def rows_of(root: Path, table: str) -> list[Row]:
    rows = raw_rows(root / "run", table)
    assert_dense(rows)
    return rows


def columns(samples: int = 40, tokens: int = TOKENS) -> dict[str, Any]:
    return {
        "prompt": [f"prompt {index}" for index in range(samples)],
        "token_ids": [[index] * tokens for index in range(samples)],
        "token_logprobs": np.linspace(-1, 0, samples * tokens, dtype=np.float32).reshape(samples, tokens),
        "token_mask": [[True, False] * (tokens // 2)] * samples,
        "reward": np.arange(float(samples)),
    }


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """The thread does not get beyond its next job before `go` is called."""
    go = threading.Event()
    real = deferred.Job.write

    def write(job: deferred.Job) -> OSError | None:
        assert go.wait(60)
        return real(job)

    with monkeypatch.context() as patch:
        patch.setattr(deferred.Job, "write", write)
        try:
            yield go.set
        finally:
            go.set()


@pytest.mark.parametrize(
    "form",
    [
        lambda given: given,
        lambda given: [{key: given[key][index] for key in given} for index in range(len(given["prompt"]))],
        lambda given: {key: torch.tensor(value) if key != "prompt" else value for key, value in given.items()},
        lambda given: pa.table({key: list(value) for key, value in given.items()}),
        lambda given: pl.DataFrame({key: list(value) for key, value in given.items()}),
    ],
    ids=["columns", "records", "tensors", "arrow", "polars"],
)
def test_every_form_arrives_whole_and_in_order(tmp_path: Path, form: Callable[[Any], Any]) -> None:
    given = columns()
    log = enter(tmp_path)
    log.log_samples(form(given), step=3)
    log.flush()
    rows = rows_of(tmp_path, "samples")
    assert [row["prompt"] for row in rows] == given["prompt"]
    assert [row["sample_index"] for row in rows] == list(range(40))
    assert [row["token_ids"] for row in rows] == given["token_ids"]
    np.testing.assert_array_equal([row["token_logprobs"] for row in rows], given["token_logprobs"])
    assert [row["token_mask"] for row in rows] == given["token_mask"]
    assert [row["reward"] for row in rows] == list(range(40))
    assert {(row["step"], row["split"], row["extra"]) for row in rows} == {(3, "validation", None)}
    assert log.close().ok


def test_what_waits_is_at_risk_until_flush_and_close_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = enter(tmp_path)
    with held(monkeypatch) as go:
        log.log_samples(columns(), step=1)
        assert log._session
        assert log._session.rows.waiting() == {"samples": 40}
        assert rows_of(tmp_path, "samples") == []
        log.log_metrics({"a": 1}, step=1)
        assert len(rows_of(tmp_path, "metrics")) == 1, "metrics do not wait for samples"
        go()
        log.flush()
        assert log._session.rows.waiting() == {}
        log.log_samples(columns(), step=2)
    report = log.close()
    assert report.ok
    assert report.rows["samples"] == len(rows_of(tmp_path, "samples")) == 80


def test_close_says_what_was_not_written_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = enter(tmp_path)
    with held(monkeypatch) as go:
        log.log_samples(columns(), step=1)
        report = log.close(timeout=0.1)
        assert (report.ok, report.rows_at_risk) == (False, {"samples": 40})
        go()


def test_the_caller_may_change_small_columns_and_lists_after_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = enter(tmp_path)
    given, tensor = columns(), torch.arange(40.0)
    with held(monkeypatch) as go:
        log.log_samples(given | {"advantage": tensor}, step=1)
        given["reward"] -= 100
        given["prompt"].clear()
        tensor += 5
        go()
        log.flush()
    rows = rows_of(tmp_path, "samples")
    assert [row["reward"] for row in rows] == [row["advantage"] for row in rows] == list(range(40))
    assert rows[7]["prompt"] == "prompt 7"
    log.close()


def test_rollouts_are_dropped_first_and_counted_other_rows_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deferred, "LIMIT_BYTES", 3 * 3_300_000)  # one call is 3.2 MB
    log = enter(tmp_path)
    with held(monkeypatch) as go:
        log.log_samples(columns(), step=0, split="validation")  # at work: it cannot be taken back
        for step in (1, 2, 3, 4):
            log.log_samples(columns(), step=step, split="rollout")
        for step in (5, 6, 7):
            log.log_samples(columns(), step=step, split="validation")
        assert log._session
        assert log._session.rows.waiting() == {"samples": 160}
        go()
        log.flush()
    rows = rows_of(tmp_path, "samples")
    assert [row["step"] for row in rows[::40]] == [0, 5, 6, 7], "beyond the bound rather than lost"
    report = log.close()
    assert report.rows_lost == {"samples": 160}
    assert caplog.text.count("loses samples rows") == 1


def test_the_newest_rollouts_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "LIMIT_BYTES", 3 * 3_300_000)
    log = enter(tmp_path)
    with held(monkeypatch) as go:
        log.log_samples(columns(), step=0)
        for step in range(1, 6):
            log.log_samples(columns(), step=step, split="rollout")
        go()
    assert log.close().rows_lost == {"samples": 120}
    assert [row["step"] for row in rows_of(tmp_path, "samples")[::40]] == [0, 4, 5]


def test_samples_that_fail_on_the_thread_are_counted_and_the_others_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("the user's own code")

    log = enter(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(calls, "sample_batches", fail)
        log.log_samples(columns(), step=1)
        log.flush()
    log.log_samples(columns(), step=2)
    report = log.close()
    assert report.rows_lost == {"samples": 40}
    assert "the user's own code" in caplog.text
    assert {row["step"] for row in rows_of(tmp_path, "samples")} == {2}


def test_large_distributions_are_the_same_as_small_ones(tmp_path: Path) -> None:
    values = np.random.default_rng(0).lognormal(size=100_000)
    tensor = torch.tensor(values, requires_grad=True)
    given = values.copy()
    log = enter(tmp_path)
    log.log_histogram(given, step=1, name="array")
    log.log_metrics({"list": values.tolist(), "tensor": tensor, "half": tensor.bfloat16()}, step=1, prefix="p")
    given[:] = 0
    log.log_metrics({"words": ["a"] * 10_000, "fine": 1.0}, step=2)
    log.flush()
    rows = {row["name"]: row for row in rows_of(tmp_path, "distributions")}
    expected = sketch(values.tolist())
    for name in ("array", "p/list", "p/tensor"):
        assert {key: rows[name][key] for key in expected} == expected, name
    assert rows["p/half"]["count"] == 100_000
    assert len(rows) == 4
    assert log.close().counters == {"values skipped": 1}


def test_large_files_are_copied_on_a_thread_and_may_be_removed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = np.random.default_rng(0).bytes(3_000_000)
    file = tmp_path / "model.bin"
    file.write_bytes(content)
    log = enter(tmp_path)
    with held(monkeypatch) as go:
        log.log_artifact(file, kind="checkpoint")
        file.unlink()
        go()
        log.flush()
    (row,) = rows_of(tmp_path, "artifacts")
    assert (row["name"], row["kind"], row["bytes"]) == ("model.bin", "checkpoint", 3_000_000)
    assert (tmp_path / "run/artifacts" / row["sha256"][:2] / row["sha256"]).read_bytes() == content
    assert log.close().ok


class TestThinning:
    def test_so_many_samples_of_a_step_and_split_are_kept(self, tmp_path: Path) -> None:
        log = enter(tmp_path, max_samples_per_step=3)
        for step in (1, 2):
            for split in ("validation", "rollout"):
                for first in (0, 2, 4):
                    records = [{"prompt": str(first)}, {"prompt": str(first + 1)}]
                    log.log_samples(records, step=step, split=split)
        log.log_samples(columns(), step=3)
        report = log.close()
        assert report.counters == {"samples thinned": 4 * 3 + 37}
        assert report.ok, "thinned is not lost"
        rows = rows_of(tmp_path, "samples")
        assert [(row["step"], row["split"], row["prompt"]) for row in rows if row["step"] < 3] == [
            (step, split, prompt) for step in (1, 2) for split in ("validation", "rollout") for prompt in "012"
        ]
        assert [row["prompt"] for row in rows if row["step"] == 3] == ["prompt 0", "prompt 1", "prompt 2"]

    def test_rollouts_of_every_so_many_steps_are_kept_validation_always(self, tmp_path: Path) -> None:
        log = enter(tmp_path, keep_rollouts_every=5)
        for step in range(11):
            log.log_samples([{"prompt": "p"}], step=step, split="rollout")
            log.log_samples([{"prompt": "p"}], step=step)
        log.log_samples([{"prompt": "no step"}], split="rollout")
        assert log.close().counters == {"samples thinned": 8}
        rows = rows_of(tmp_path, "samples")
        assert [row["step"] for row in rows if row["split"] == "rollout"] == [0, 5, 10, None]
        assert [row["step"] for row in rows if row["split"] == "validation"] == list(range(11))

    @pytest.mark.parametrize("name", ["max_samples_per_step", "keep_rollouts_every"])
    def test_a_bound_that_is_none_is_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(OptionError, match=rf"^{name}=0 is no number of (samples|steps)"):
            enter(tmp_path, **{name: 0})


def test_a_sample_of_many_kinds_keeps_what_has_no_column(tmp_path: Path) -> None:
    records = [{"prompt": "p" * 5000, "token_ids": [1, None, 3], "token_logprobs": [0.5, "x"], "mine": 1}] * 30
    log = enter(tmp_path)
    log.log_samples(records, step=1)
    log.flush()
    row = rows_of(tmp_path, "samples")[29]
    assert row["token_ids"] == [1, None, 3]
    assert row["token_logprobs"] is None
    assert json.loads(row["extra"]) == {"token_logprobs": [0.5, "x"], "mine": 1}
    log.close()
