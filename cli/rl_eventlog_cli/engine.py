"""`--engine`: where the work on many runs is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

Result = TypeVar("Result")

Engine = Literal["local", "ray"]
EngineOption = Annotated[
    Engine,
    typer.Option(
        "--engine",
        help="local: one run after another, in this process. ray: one Ray task a run, on the cluster of RAY_ADDRESS or "
        "of this machine, else on one started for it.",
    ),
]


def work_on(
    paths: Sequence[Path],
    many: Callable[[Sequence[Path]], Iterator[Result]],
    failed: Callable[[Path, Exception], Result],
    *,
    engine: Engine,
) -> Iterator[Result]:
    """The results of runs, in order.

    Args:
        paths: folders of the runs.
        many: works on some of them; a result each. It has to pickle, like its results.
        failed: the result of a run whose task did not come back.
        engine: see `EngineOption`.

    Raises:
        MissingDependencyError: Ray is asked for and not installed.
    """
    if engine == "local":
        yield from many(paths)
        return
    from rl_eventlog.integrations.ray_engine import map_runs

    for path, outcome in zip(paths, map_runs(partial(_work_on_one, many), paths), strict=True):
        yield failed(path, outcome) if isinstance(outcome, Exception) else outcome


def _work_on_one(many: Callable[[Sequence[Path]], Iterator[Result]], path: Path) -> Result:
    (result,) = many([path])
    return result
