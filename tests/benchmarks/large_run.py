"""A run of many ranks in the real format, and what its metrics must be: the load of the scale benchmark.

Two attempts overlap: the second resumes where the checkpoint before the crash was. In every fiftieth file
one row in twenty was logged twice; the later one counts. Values come from a random generator seeded by
(rank, attempt), so that the oracle computes them again without reading a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rl_eventlog.documents import encode_beat, encode_document, time_text
from rl_eventlog.ids import new_ulid
from rl_eventlog.layout import LAYOUT_VERSION, RunLayout
from rl_eventlog.schema import table as table_schema
from rl_eventlog.segment.sealed import write_sealed
from rl_eventlog.types import Identity, Span
from tests.support.reduce_oracle import merged_value

START = datetime(2026, 3, 1, tzinfo=timezone.utc)
RANKS_A_NODE = 8
REDUCTIONS = (None, None, None, "sum", "min", "max", None, "last", "std", "p95")
FILES_WITH_REPEATS, ROWS_REPEATED = 50, 20
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LargeRun:
    """What was logged."""

    path: Path
    ranks: int
    metrics: int
    steps: int

    @property
    def points(self) -> int:
        """Values that count: one a rank, metric and step."""
        return self.ranks * self.metrics * self.steps

    @property
    def spans(self) -> tuple[range, range]:
        """Steps of the two attempts: the second repeats a tenth of the run."""
        return range(self.steps * 6 // 10), range(self.steps // 2, self.steps)

    def name(self, metric: int) -> str:
        return f"train/metric_{metric:03d}"

    def reduction(self, metric: int) -> str | None:
        return REDUCTIONS[metric % len(REDUCTIONS)]

    def weight(self, metric: int, rank: int) -> float | None:
        return 1.0 + rank % 7 if metric % len(REDUCTIONS) == 0 else None

    def logged(self, rank: int, attempt: int) -> tuple[Array, Array, Array]:
        """Steps, metrics and values in the order of logging, of attempt 0 or 1."""
        random = np.random.default_rng([rank, attempt])
        span = self.spans[attempt]
        steps = np.repeat(np.arange(span.start, span.stop), self.metrics)
        metrics = np.tile(np.arange(self.metrics), len(span))
        if (2 * rank + attempt) % FILES_WITH_REPEATS == 0:
            again = random.choice(len(steps), len(steps) // ROWS_REPEATED, replace=False)
            steps, metrics = np.concatenate([steps, steps[again]]), np.concatenate([metrics, metrics[again]])
        return steps, metrics, random.normal(rank, 10.0, len(steps))

    def expected(self, keys: list[tuple[int, int]]) -> dict[tuple[str, int], float | None]:
        """The merged value by (name, step) of the given (metric, step)."""
        rows: dict[tuple[int, int], list[dict[str, Any]]] = {key: [] for key in keys}
        places = np.array([step * self.metrics + metric for metric, step in keys])
        for rank in range(self.ranks):
            held = np.full(self.steps * self.metrics, np.nan)
            for attempt in range(2):
                steps, metrics, values = self.logged(rank, attempt)
                held[steps * self.metrics + metrics] = values
            for (metric, step), value in zip(keys, held[places], strict=True):
                row = {"value": float(value), "weight": self.weight(metric, rank), "data_rank": None}
                rows[metric, step].append({**row, "rank": rank, "rank_key": f"rank {rank}"})
        return {
            (self.name(metric), step): merged_value(found, self.reduction(metric) or "mean")
            for (metric, step), found in rows.items()
        }


def write_large_run(root: Path, *, ranks: int, metrics: int = 100, steps: int = 500, name: str = "large") -> LargeRun:
    """A run below `root`."""
    run = LargeRun(root / name, ranks, metrics, steps)
    layout = RunLayout(run.path)
    layout.writers.mkdir(parents=True)
    layout.launches.mkdir()
    run_uid = new_ulid()
    layout.run_json.write_bytes(
        encode_document({"run_uid": run_uid, "created": time_text(START), "layout_version": LAYOUT_VERSION})
    )
    with ThreadPoolExecutor(2) as pool:
        for _ in pool.map(lambda job: _write_rank(run, layout, *job), _identities(run, run_uid)):
            pass
    return run


def _identities(run: LargeRun, run_uid: str) -> Iterator[tuple[Identity, int]]:
    for attempt in range(2):
        for rank in range(run.ranks):
            launch = f"slurm-4711.0-r{attempt}"
            node = f"node-{rank // RANKS_A_NODE:03d}"
            yield Identity(run_uid, new_ulid(), launch, "trainer", rank, None, node), attempt


def _write_rank(run: LargeRun, layout: RunLayout, identity: Identity, attempt: int) -> None:
    steps, metrics, values = run.logged(identity.rank or 0, attempt)
    _write_documents(run, layout, identity, attempt, rows=len(values))
    seconds = 60 * steps + 3600 * attempt
    times = np.datetime64(START.replace(tzinfo=None), "us") + seconds.astype("timedelta64[s]")
    rank = identity.rank or 0
    names = pa.array([run.name(metric) for metric in range(run.metrics)])
    reductions = pa.array([run.reduction(metric) for metric in range(run.metrics)], pa.string())
    weights = pa.array([run.weight(metric, rank) for metric in range(run.metrics)], pa.float64())
    which = pa.array(metrics)
    columns = {
        "step": pa.array(steps, pa.int64()),
        "time": pa.array(times, pa.timestamp("us", "UTC")),
        "name": names.take(which),
        "value": pa.array(values),
        "weight": weights.take(which),
        "reduction": reductions.take(which),
    }
    schema = table_schema("metrics").open
    rows = pa.table([columns.get(field.name, pa.nulls(len(values), field.type)) for field in schema], schema=schema)
    folder = layout.shard("metrics", identity.node)
    folder.mkdir(parents=True, exist_ok=True)
    write_sealed(folder, rows, Span(0, len(values) - 1), 0, "metrics", identity)


def _write_documents(run: LargeRun, layout: RunLayout, identity: Identity, attempt: int, *, rows: int) -> None:
    opened = START + timedelta(hours=attempt)
    said = {
        "writer": identity.writer,
        "run_uid": identity.run_uid,
        "name": "large",
        "role": identity.role,
        "rank": identity.rank,
        "world_size": run.ranks,
        "node": identity.node,
        "host": identity.node,
        "boot_id": f"boot of {identity.node}",
        "pid": 1000 + (identity.rank or 0) % RANKS_A_NODE,
        "process_start": 100,
        "opened": time_text(opened),
        "launch": identity.launch,
        "restart_count": attempt,
        "format_version": "1.0",
        "launches_seen": ["0" * 16] * attempt,
    }
    layout.writer(identity.writer).write_bytes(encode_document(said))
    time = time_text(opened + timedelta(hours=8))
    beat = {"writer": identity.writer, "time": time, "step": run.spans[attempt][-1], "open_timers": []}
    layout.beat(identity.writer).write_bytes(encode_beat(beat | {"rows_at_risk": 0, "rows_lost": 0}))
    if attempt == 1:
        end = {"writer": identity.writer, "ended": time, "reason": "finished", "last_seq": {"metrics": rows - 1}}
        layout.end(identity.writer).write_bytes(encode_document(end | {"rows_lost": {}, "counters": {}}))
