"""What one log call costs the training, beside what people use today."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from rl_eventlog import EventWriter

from .measure import Call, Times, time_calls


def metrics_of(count: int) -> dict[str, float]:
    """A call of `count` metrics, the same in every run."""
    numbers = random.Random(count)
    return {f"metric_{index}": numbers.random() for index in range(count)}


@contextlib.contextmanager
def ours(folder: Path, metrics: Mapping[str, float]) -> Iterator[Call]:
    """`EventWriter.log_metrics`."""
    log = EventWriter.open(folder, run="bench", role="trainer", rank=0, capture_diff=False)
    yield lambda step: log.log_metrics(metrics, step, "train")
    log.close(timeout=300)


@contextlib.contextmanager
def bare_write(folder: Path, metrics: Mapping[str, float]) -> Iterator[Call]:
    """`os.pwrite` of as many bytes as our message has: the floor."""
    data, place = bytes(356 + 87 * len(metrics)), [0]
    fd = os.open(folder / "bare", os.O_RDWR | os.O_CREAT)

    def call(_: int) -> None:
        place[0] += os.pwrite(fd, data, place[0])

    yield call
    os.close(fd)


@contextlib.contextmanager
def jsonl(folder: Path, metrics: Mapping[str, float]) -> Iterator[Call]:
    """A line-buffered JSONL file: what most file loggers are."""
    with (folder / "log.jsonl").open("a", buffering=1) as file:
        yield lambda step: file.write(json.dumps({"step": step, "time": time.time(), **metrics}) + "\n")


@contextlib.contextmanager
def wandb_offline(folder: Path, metrics: Mapping[str, float]) -> Iterator[Call]:
    """`wandb` offline, with statistics and metadata off."""
    import wandb

    settings = wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off", silent=True)
    run = wandb.init(mode="offline", project="bench", dir=folder, settings=settings)
    yield lambda step: run.log(dict(metrics), step=step)
    run.finish()


@contextlib.contextmanager
def summary_writer(folder: Path, metrics: Mapping[str, float]) -> Iterator[Call]:
    """torch's `SummaryWriter`, a scalar at a time, as it is used."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))

    def call(step: int) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    yield call
    writer.close()


@contextlib.contextmanager
def mlflow_sqlite(folder: Path, metrics: Mapping[str, float]) -> Iterator[Call]:
    """MLflow's fluent API on a local sqlite file."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    mlflow.set_experiment("bench")
    with mlflow.start_run():
        yield lambda step: mlflow.log_metrics(dict(metrics), step=step)


CONTESTANTS = {
    "rl-eventlog": ours,
    "bare pwrite of the same bytes": bare_write,
    "line-buffered JSONL": jsonl,
    "wandb offline": wandb_offline,
    "torch SummaryWriter": summary_writer,
    "mlflow on sqlite": mlflow_sqlite,
}
CALLS = {
    "rl-eventlog": 50_000,
    "bare pwrite of the same bytes": 50_000,
    "line-buffered JSONL": 50_000,
    "wandb offline": 5_000,
    "torch SummaryWriter": 3_000,
    "mlflow on sqlite": 300,
}


def beside_others(folder: Path, *, share: float = 1.0) -> dict[str, Times]:
    """20 metrics a call, all contestants in one run.

    Args:
        folder: an empty folder on the disk to be measured.
        share: of the calls of a full measurement.
    """
    metrics = metrics_of(20)
    with contextlib.ExitStack() as stack:
        calls = {name: stack.enter_context(make(folder, metrics)) for name, make in CONTESTANTS.items()}
        for call in calls.values():
            call(0)  # what is made at the first call is not the call's cost
        return time_calls(calls, {name: max(10, int(count * share)) for name, count in CALLS.items()})


def by_number_of_keys(folder: Path, *, share: float = 1.0) -> dict[int, Times]:
    """Our call with 1 to 1,000 metrics."""
    found = {}
    for count in (1, 5, 20, 100, 1000):
        (folder / str(count)).mkdir()
        with ours(folder / str(count), metrics_of(count)) as call:
            call(0)
            found[count] = time_calls({"ours": call}, {"ours": max(10, int(20_000 * share))})["ours"]
    return found


def rotating_key_sets(folder: Path, *, share: float = 1.0) -> Times:
    """1,000 different sets of 20 metrics in rotation."""
    sets = [{f"{number}/{index}": 0.5 for index in range(20)} for number in range(1000)]
    log = EventWriter.open(folder, run="rotating", capture_diff=False)
    for metrics in sets:
        log.log_metrics(metrics, 0)
    call: Call = lambda step: log.log_metrics(sets[step % 1000], step)  # noqa: E731
    times = time_calls({"ours": call}, {"ours": max(1000, int(20_000 * share))})["ours"]
    log.close(timeout=300)
    return times
