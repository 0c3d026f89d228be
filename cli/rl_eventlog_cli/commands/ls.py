"""`rleventlog ls`: which runs there are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_eventlog_cli import output, states
from rl_eventlog_cli.options import FAILED, Json, Utc, default_root, read_around_damage

if TYPE_CHECKING:
    from rl_eventlog.run import RoleInfo, RunInfo


_MANY = 1_000  # runs: what starting the processes takes is won back
_PROCESSES = 8


def command(
    root: Annotated[
        Path | None,
        typer.Argument(metavar="[ROOT]", help="Folder of runs; default: $RLEVENTLOG_DIR, else ./runs."),
    ] = None,
    as_json: Json = False,
    utc: Utc = False,
) -> None:
    """List the runs below a folder.

    Shown are state, attempts, ranks seen of expected, last step, start and age: the time since the last sign of life.

    Exit status 0; 1 where a run cannot be read or the folder is not there.
    """
    from rl_eventlog.errors import RunNotFoundError
    from rl_eventlog.reader import find_runs

    root = root or default_root()
    if not root.is_dir():
        raise RunNotFoundError(f"{root}: no such folder; give one that holds runs")
    infos: dict[str, RunInfo] = {}
    problems: list[str] = []
    for path, found in _look_at(find_runs(root)):
        if isinstance(found, str):
            problems.append(f"{path}: {found}")
        else:
            infos[path.name if path == root else path.relative_to(root).as_posix()] = found
    if as_json:
        output.print_json({"root": root, "runs": [_document(info) for info in infos.values()], "problems": problems})
    elif infos:
        _show(infos, utc=utc)
    else:
        output.words(f"no runs below {root}")
    for problem in problems:
        output.words(f"cannot read {problem}")
    if problems:
        raise typer.Exit(FAILED)


def _look_at(paths: list[Path]) -> Iterator[tuple[Path, RunInfo | str]]:
    """Each run and how it fares, or why that cannot be said."""
    if len(paths) < _MANY:
        yield from zip(paths, map(_info, paths), strict=True)
        return
    with ProcessPoolExecutor(min(os.cpu_count() or 1, _PROCESSES), mp_context=get_context("spawn")) as pool:
        yield from zip(paths, pool.map(_info, paths, chunksize=50), strict=True)


def _info(path: Path) -> RunInfo | str:
    from rl_eventlog import Run
    from rl_eventlog.errors import EventLogError

    try:
        return read_around_damage(Run(path), lambda run: run.info)[1]
    except (EventLogError, OSError) as error:
        return str(error)


def _show(infos: Mapping[str, RunInfo], *, utc: bool) -> None:
    output.table(
        ["run", "state", "attempts", "ranks", "step", "started", "age"],
        [
            (
                name,
                states.in_words(info.state, info.ranks),
                len(info.attempts),
                ", ".join(f"{role.role} {_of_expected(role)}" for role in info.roles),
                _last_step(info),
                output.clock(info.started, utc=utc),
                output.duration(_age_seconds(info)),
            )
            for name, info in infos.items()
        ],
        right=["attempts", "step", "age"],
    )


def _document(info: RunInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "path": info.path,
        "run_uid": info.run_uid,
        "project": info.project,
        "group": info.group,
        "tags": info.tags,
        "state": info.state,
        "ended_by": states.ended_by(info.ranks),
        "attempts": len(info.attempts),
        "roles": [
            {
                "role": role.role,
                "state": role.state,
                "ranks_seen": role.ranks_seen,
                "ranks_expected": role.ranks_expected,
            }
            for role in info.roles
        ],
        "last_step": _last_step(info),
        "started": info.started,
        "last_seen": info.last_seen,
        "age_seconds": _age_seconds(info),
        "damaged_files": len(info.problems),
        "gaps": len(info.gaps),
    }


def _of_expected(role: RoleInfo) -> str:
    return str(role.ranks_seen) if role.ranks_expected is None else f"{role.ranks_seen}/{role.ranks_expected}"


def _last_step(info: RunInfo) -> int | None:
    return max((attempt.last_step for attempt in info.attempts if attempt.last_step is not None), default=None)


def _age_seconds(info: RunInfo) -> float | None:
    return None if info.last_seen is None else (info.read - info.last_seen).total_seconds()
