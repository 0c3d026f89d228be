"""What a target holds of one run, read by the target's own means.

- Nothing here goes through our sinks, our ledger or our reader.
- MLflow through its client, TensorBoard through its `EventAccumulator`, W&B through the file its client wrote.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path


def mlflow_points(tracking_uri: str, run_uid: str) -> dict[str, int]:
    """Points of each key in the MLflow run that carries `run_uid` as a tag."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (remote,) = client.search_runs(experiments, filter_string=f"tags.`rleventlog.run_uid` = '{run_uid}'")
    run_id = remote.info.run_id
    return {key: len(client.get_metric_history(run_id, key)) for key in remote.data.metrics}


def tensorboard_points(folder: Path) -> dict[str, int]:
    """Points of each tag in the TensorBoard folder of a run; tags of a subfolder begin with its name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    points: dict[str, int] = {}
    for place in sorted({path.parent for path in folder.rglob("*tfevents*")}):
        events = EventAccumulator(str(place), size_guidance={"scalars": 0})
        events.Reload()
        prefix = "" if place == folder else f"{place.relative_to(folder).as_posix()}/"
        points.update({f"{prefix}{tag}": len(events.Scalars(tag)) for tag in events.Tags()["scalars"]})
    return points


def wandb_points(folder: Path) -> dict[str, int]:
    """Points of each metric in the W&B offline folders of a run: its numbers that have an x-axis.

    So neither the x-axes themselves count, nor the client's own values, nor tables of samples.
    """
    from rl_eventlog_cli.demo.wandb_file import read_offline_runs

    points: Counter[str] = Counter()
    for commit in read_offline_runs(folder):
        for row in commit.history:
            points.update(key for key, value in row.items() if key in commit.axes and isinstance(value, int | float))
    return dict(points)
