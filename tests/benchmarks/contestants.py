"""Who takes part: our log call, the floor below it, and what people use today.

Each is set up as its documentation says for local use. What runs beside the logging on its own account
(host statistics, console capture, metadata) is switched off where it can be. None of the peers calls
fsync; our background fsync runs as always. Each contestant says how many points a reader of its files
finds, so that nobody wins by writing less.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from rl_eventlog import EventWriter, Run

Metrics: TypeAlias = Mapping[str, float]
#: One log call with its step.
Log: TypeAlias = Callable[[Metrics, int], object]


@dataclass(frozen=True, slots=True)
class Contestant:
    """Somebody who logs."""

    open: Callable[[Path, Sequence[Metrics]], AbstractContextManager[Log]]
    """Set up in an empty folder, for calls with these metrics; ends with everything on the disk."""
    points: Callable[[Path], int]
    """Values that a reader of the files finds."""
    quiet_seconds: float = 0.0
    """Work in the background is done when the files have not changed for so long; 0: there is none."""


def message_of(folder: Path, log: Callable[[EventWriter], object]) -> tuple[bytes, bytes]:
    """What a call of ours writes.

    Args:
        folder: an empty folder.
        log: makes the call.

    Returns:
        The head of the open segment, and the message of one call.
    """
    with EventWriter.open(folder, run="message", rank=0, capture_diff=False, write="direct") as writer:
        log(writer)
        (segment,) = writer.path.glob("events/metrics/*/*.arrows")
        first = segment.stat().st_size
        log(writer)
        data = segment.read_bytes()
    message = data[first:]
    return data[: first - len(message)], message


def _ours(write: Literal["direct", "queued"]) -> Callable[[Path, Sequence[Metrics]], AbstractContextManager[Log]]:
    @contextlib.contextmanager
    def opened(folder: Path, _: Sequence[Metrics]) -> Iterator[Log]:
        writer = EventWriter.open(folder, run="bench", role="trainer", rank=0, capture_diff=False, write=write)
        yield lambda metrics, step: writer.log_metrics(metrics, step, "train")
        report = writer.close(timeout=300)
        if not report.ok:
            raise RuntimeError(f"not all was written: {report}")

    return opened


def _our_points(folder: Path) -> int:
    return Run(folder / "bench").metrics(ranks="each").collect().height


@contextlib.contextmanager
def _bare_pwrite(folder: Path, calls: Sequence[Metrics]) -> Iterator[Log]:
    messages = {}
    head = b""
    for metrics in calls:
        scratch = folder / f"scratch-{len(metrics)}"
        head, messages[len(metrics)] = message_of(scratch, lambda writer, m=metrics: writer.log_metrics(m, 1, "train"))  # type: ignore[misc]
    fd = os.open(folder / "bare.arrows", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    place = os.pwrite(fd, head, 0)

    def log(metrics: Metrics, _: int) -> None:
        nonlocal place
        place += os.pwrite(fd, messages[len(metrics)], place)

    yield log
    os.close(fd)


def _bare_points(folder: Path) -> int:
    with pa.OSFile(str(folder / "bare.arrows")) as file, pa.ipc.open_stream(file) as stream:
        return sum(batch.num_rows for batch in stream)


@contextlib.contextmanager
def _jsonl(folder: Path, _: Sequence[Metrics]) -> Iterator[Log]:
    with (folder / "log.jsonl").open("a", buffering=1, encoding="utf-8") as file:
        yield lambda metrics, step: file.write(json.dumps({"step": step, "time": time.time(), **metrics}) + "\n")


@contextlib.contextmanager
def _orjson(folder: Path, _: Sequence[Metrics]) -> Iterator[Log]:
    import orjson

    fd = os.open(folder / "log.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    line = orjson.OPT_APPEND_NEWLINE
    yield lambda metrics, step: os.write(fd, orjson.dumps({"step": step, "time": time.time(), **metrics}, option=line))
    os.close(fd)


def _jsonl_points(folder: Path) -> int:
    with (folder / "log.jsonl").open(encoding="utf-8") as file:
        return sum(len(json.loads(line)) - 2 for line in file)


@contextlib.contextmanager
def _wandb(folder: Path, _: Sequence[Metrics]) -> Iterator[Log]:
    import wandb

    settings = wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off", silent=True)
    run = wandb.init(mode="offline", project="bench", dir=folder, settings=settings)
    yield lambda metrics, step: run.log(dict(metrics), step=step)
    run.finish()
    wandb.teardown()  # its service may hold the end of the file until then


def _wandb_points(folder: Path) -> int:
    from rl_eventlog.sinks.wandb_file import read_records

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    keys = (item.key or item.nested_key[0] for record in read_records(path) for item in record.history.item)
    return sum(not key.startswith("_") for key in keys)


@contextlib.contextmanager
def _summary_writer(folder: Path, _: Sequence[Metrics]) -> Iterator[Log]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "events")) as writer:

        def log(metrics: Metrics, step: int) -> None:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)

        yield log


def _summary_points(folder: Path) -> int:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (path,) = folder.glob("events/events.out.*")
    return sum(len(event.summary.value) for event in EventFileLoader(str(path)).Load())


@contextlib.contextmanager
def _mlflow(folder: Path, _: Sequence[Metrics]) -> Iterator[Log]:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.set_experiment("bench")
    with mlflow.start_run():
        yield lambda metrics, step: mlflow.log_metrics(dict(metrics), step=step)


def _mlflow_points(folder: Path) -> int:
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as database:
        return int(database.execute("SELECT count(*) FROM metrics").fetchone()[0])


@contextlib.contextmanager
def _trackio(folder: Path, _: Sequence[Metrics]) -> Iterator[Log]:
    # read when it is imported; without the second it asks the network who the user is
    os.environ |= {"TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    import trackio

    trackio.init(project="bench", name="bench", auto_log_cpu=False, auto_log_gpu=False)
    yield lambda metrics, step: trackio.log(dict(metrics), step=step)
    trackio.finish()  # type: ignore[no-untyped-call]  # of the client


def _trackio_points(folder: Path) -> int:
    with contextlib.closing(sqlite3.connect(folder / "bench.db")) as database:
        rows: list[tuple[Any]] = database.execute("SELECT metrics FROM metrics").fetchall()
    return sum(len(json.loads(row)) for (row,) in rows)


OURS, QUEUED, BARE, JSONL, WANDB = (
    "rl-eventlog",
    "rl-eventlog, queued",
    "bare pwrite of the same bytes",
    "line-buffered JSONL",
    "wandb offline",
)
#: trackio's thread looks every 0.5 s
CONTESTANTS = {
    OURS: Contestant(_ours("direct"), _our_points, quiet_seconds=0.1),
    QUEUED: Contestant(_ours("queued"), _our_points, quiet_seconds=0.1),
    BARE: Contestant(_bare_pwrite, _bare_points),
    JSONL: Contestant(_jsonl, _jsonl_points),
    "orjson + os.write": Contestant(_orjson, _jsonl_points),
    WANDB: Contestant(_wandb, _wandb_points, quiet_seconds=0.3),
    "torch SummaryWriter": Contestant(_summary_writer, _summary_points, quiet_seconds=0.1),
    "mlflow on sqlite": Contestant(_mlflow, _mlflow_points),
    "trackio": Contestant(_trackio, _trackio_points, quiet_seconds=0.7),
}
