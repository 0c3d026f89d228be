"""A job of many ranks that was preempted and restarted several times, its files written directly and quickly."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa

from rl_eventlog.documents import encode_beat, encode_document, time_text
from rl_eventlog.ids import new_ulid
from rl_eventlog.layout import RunLayout, open_name
from rl_eventlog.schema import table as table_schema
from rl_eventlog.segment.open_segment import OpenSegment
from rl_eventlog.segment.seal import seal_open
from rl_eventlog.types import Identity

RANKS_A_NODE = 8
METRICS = ("train/loss", "train/reward", "train/tokens")
START = datetime(2026, 3, 1, tzinfo=timezone.utc)


def preempted_job(root: Path, *, ranks: int, attempts: int, steps: int) -> Path:
    """The run `big`: attempt a logs steps a x steps and on. All attempts but the last were killed on other machines.

    Each rank has two tables: `steps` x 3 metrics whose value is the rank, and `steps` timings of a second.
    """
    path = root / "big"
    layout = RunLayout(path)
    layout.writers.mkdir(parents=True)
    run_uid = new_ulid()
    launches: list[str] = []
    for attempt in range(attempts):
        launch = f"slurm-4711-r{attempt}"
        for rank in range(ranks):
            identity = Identity(run_uid, new_ulid(), launch, "trainer", rank, None, f"node-{rank // RANKS_A_NODE}")
            ended = attempt == attempts - 1
            _documents(layout, identity, launches, attempt=attempt, ranks=ranks, steps=steps, ended=ended)
            for table in ("metrics", "timings"):
                _segment(layout, identity, table, range(attempt * steps, (attempt + 1) * steps), sealed=ended)
        launches.append(launch)
    return path


def _documents(
    layout: RunLayout, identity: Identity, launches: list[str], *, attempt: int, ranks: int, steps: int, ended: bool
) -> None:
    writer, opened = identity.writer, START + timedelta(hours=4 * attempt)
    said = {
        "writer": writer,
        "run_uid": identity.run_uid,
        "name": "big",
        "role": identity.role,
        "rank": identity.rank,
        "world_size": ranks,
        "node": identity.node,
        "host": identity.node,
        "boot_id": f"boot of {identity.node}",
        "pid": 1000 + (identity.rank or 0) % RANKS_A_NODE,
        "process_start": 100,
        "opened": time_text(opened),
        "launch": identity.launch,
        "restart_count": attempt,
        "format_version": "1.0",
        "launches_seen": launches,
    }
    layout.writer(writer).write_bytes(encode_document(said))
    beat = {"writer": writer, "time": time_text(opened + timedelta(hours=4)), "step": steps, "open_timers": []}
    layout.beat(writer).write_bytes(encode_beat(beat | {"rows_at_risk": 0, "rows_lost": 0}))
    if ended:
        last_seq = {"metrics": steps * len(METRICS) - 1, "timings": steps - 1}
        end = {"writer": writer, "ended": time_text(opened + timedelta(hours=4)), "reason": "finished"}
        layout.end(writer).write_bytes(encode_document(end | {"last_seq": last_seq, "rows_lost": {}, "counters": {}}))


def _segment(layout: RunLayout, identity: Identity, table: str, steps: range, *, sealed: bool) -> None:
    folder = layout.shard(table, identity.node)
    folder.mkdir(parents=True, exist_ok=True)
    segment = OpenSegment(folder / open_name(identity.writer, 0), table, identity, 0)
    segment.append(_rows(table, identity.rank or 0, steps))
    segment.close()
    if sealed:
        seal_open(segment.path, 0, table)
        segment.path.unlink()


def _rows(table: str, rank: int, steps: range) -> pa.RecordBatch:
    columns: dict[str, Sequence[Any]]
    if table == "metrics":
        columns = {"name": METRICS * len(steps), "value": [float(rank)] * (len(steps) * len(METRICS))}
    else:
        columns = {"name": ["step"] * len(steps), "duration_seconds": [1.0] * len(steps), "count": [1] * len(steps)}
    rows = len(columns["name"])
    columns["step"] = [step for step in steps for _ in range(rows // len(steps))]
    columns["time"] = [START + timedelta(seconds=step) for step in columns["step"]]
    schema = table_schema(table).open
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
