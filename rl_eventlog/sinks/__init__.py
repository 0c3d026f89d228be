"""Targets: one module each, all behind `rl_eventlog.sinks.base`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rl_eventlog.errors import SyncError

if TYPE_CHECKING:
    from .base import Sink

SINKS = {
    "mlflow": "rl_eventlog.sinks.mlflow:MLflowSink",
    "tensorboard": "rl_eventlog.sinks.tensorboard:TensorboardSink",
    "wandb": "rl_eventlog.sinks.wandb:WandbSink",
}
"""Kind of a target -> module and class."""


def make_sink(kind: str, **options: Any) -> Sink:
    """Make the sink of a target; its client is imported now.

    Args:
        kind: a key of `SINKS`.
        options: arguments of the sink's class.

    Raises:
        SyncError: there is no such target.
        MissingDependencyError: the client is not installed.
    """
    if kind not in SINKS:
        raise SyncError(f"unknown target {kind!r}: use one of {', '.join(sorted(SINKS))}")
    module, _, name = SINKS[kind].partition(":")
    sink: Sink = getattr(import_module(module), name)(**options)
    return sink
