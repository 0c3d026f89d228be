"""What a W&B offline file holds, as plain values: the demo and the tests look at their runs with it.

Values are JSON as the client wrote it, where NaN, Infinity and -Infinity stay what they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_eventlog.sinks.wandb_file import read_records

Json = dict[str, Any]


@dataclass
class WandbFile:
    """The content of one `.wandb` file."""

    run_id: str = ""
    project: str = ""
    name: str = ""
    tags: list[str] = field(default_factory=list)
    history: list[Json] = field(default_factory=list)
    """One dict a row, `_step` and `_timestamp` among them."""
    config: Json = field(default_factory=dict)
    """Last value of each key, the client's own `_wandb` left out."""
    axes: dict[str, str] = field(default_factory=dict)
    """Name of a metric -> name of the metric that is its x-axis."""
    summary: Json = field(default_factory=dict)
    exit_code: int | None = None
    """None where the writing process ended without a word."""


def read_wandb_file(path: Path) -> WandbFile:
    """Read one file whole.

    Raises:
        ValueError: the file is damaged.
        OSError: it cannot be read.
    """
    content = WandbFile()
    for record in read_records(path):
        match record.WhichOneof("record_type"):
            case "run":
                content.run_id, content.project = record.run.run_id, record.run.project
                content.name, content.tags = record.run.display_name, list(record.run.tags)
                _put(content.config, record.run.config.update)
            case "config":
                _put(content.config, record.config.update)
            case "history":
                content.history.append(_put({}, record.history.item))
            case "metric" if record.metric.step_metric:
                content.axes[record.metric.name or record.metric.glob_name] = record.metric.step_metric
            case "summary":
                _put(content.summary, record.summary.update)
            case "exit":
                content.exit_code = record.exit.exit_code
    content.config.pop("_wandb", None)
    return content


def read_offline_runs(folder: Path) -> list[WandbFile]:
    """The files of all commits below the folder that the sink writes to, in the order they were sent."""
    return [read_wandb_file(path) for path in sorted(folder.glob("*/wandb/offline-run-*/run-*.wandb"))]


def _put(values: Json, items: Iterable[Any]) -> Json:
    """Set the values of config, history or summary items, which have the same fields."""
    for item in items:
        *parents, key = item.nested_key or [item.key]
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
        place[key] = json.loads(item.value_json)
    return values
