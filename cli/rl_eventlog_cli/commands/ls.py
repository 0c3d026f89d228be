"""`rleventlog ls`: which runs there are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_eventlog_cli import output, states
from rl_eventlog_cli.options import FAILED, Json, Utc, default_root, read_around_damage

if TYPE_CHECKING:
    from rl_eventlog.run import RoleInfo, RunInfo


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
    from rl_eventlog import Runs
    from rl_eventlog.errors import EventLogError

    runs = Runs(root or default_root())
    infos: dict[str, RunInfo] = {}
    problems = [f"{problem.path}: {problem.reason}" for problem in runs.problems]
    for name, run in zip(runs.names, runs, strict=True):
        try:
            _, infos[name] = read_around_damage(run, lambda run: run.info)
        except (EventLogError, OSError) as error:
            problems.append(f"{run.path}: {error}")
    if as_json:
        output.print_json(
            {"root": runs.root, "runs": [_document(info) for info in infos.values()], "problems": problems}
        )
    elif infos:
        _show(infos, utc=utc)
    else:
        output.words(f"no runs below {runs.root}")
    for problem in problems:
        output.words(f"cannot read {problem}")
    if problems:
        raise typer.Exit(FAILED)


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
