"""One Ray task a run: many runs are looked after at once.

- Results come in order. What goes wrong with one run, its worker's death among it, stops no other.
- The cluster is the one that `RAY_ADDRESS` names or that runs on this machine; else one is started here for the
  time being. Its nodes need the same rl-eventlog and see the same files.
- A task works in the caller's folder and with its `RLEVENTLOG_*`, `MLFLOW_*`, `WANDB_*` and `XDG_*` variables, so
  that paths and addresses mean the same as here. They go as arguments, which Ray shows nowhere.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rl_eventlog.errors import EventLogError, MissingDependencyError

Item = TypeVar("Item")
Result = TypeVar("Result")

_CARRIED = ("MLFLOW_", "RLEVENTLOG_", "WANDB_", "XDG_")


def map_runs(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result | Exception]:
    """Call a function with each item, in a Ray task of its own.

    Args:
        function: with its results it has to pickle.
        items: paths of runs, for one.

    Yields:
        Of each item in order what the function returned, or the exception that it raised, or that says what
        became of its worker.

    Raises:
        MissingDependencyError: Ray is not installed.
        ConnectionError: the cluster of `RAY_ADDRESS` does not answer.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError("ray", "ray") from error

    environment = {name: value for name, value in os.environ.items() if name.startswith(_CARRIED)}
    with _cluster():
        task = ray.remote(max_retries=1)(_call)  # once more, for a node that was lost
        given = (ray.put(function), str(Path.cwd()), environment)
        for reference in [task.remote(*given, item) for item in items]:
            try:
                yield pickle.loads(ray.get(reference))  # noqa: S301 -- of our own task
            except ray.exceptions.RayError as error:
                yield error


def _call(function: Callable[[Any], Any], folder: str, environment: Mapping[str, str], item: Any) -> bytes:
    """In a worker: the pickled result or exception, since Ray would wrap the latter in one of its own."""
    os.chdir(folder)
    os.environ.update(environment)
    try:
        outcome = function(item)
    except Exception as error:  # noqa: BLE001 -- of one run; the caller hears of it
        outcome = error
    try:
        packed = pickle.dumps(outcome)
        pickle.loads(packed)  # noqa: S301 -- our own; an exception of a client may pickle and not come back
    except Exception:  # noqa: BLE001 -- as above
        packed = pickle.dumps(EventLogError(f"{type(outcome).__name__}: {outcome}"))
    return packed


@contextmanager
def _cluster() -> Iterator[None]:
    """Connected to Ray; what was connected before stays so."""
    import ray

    if ray.is_initialized():
        yield
        return
    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()
