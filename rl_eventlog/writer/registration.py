"""How a writer enters a run: the folder, `run.json`, the launch, and the writer's own document.

- Any number of processes may enter one run at once, without locks: files are made exclusively, and
  who comes second reads what is there.
- Either all of a writer's documents are on the disk when `register` returns, or it raises `OpenError`.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from rl_eventlog.documents import decode_beat, encode_document, now_utc, parse_time, read_document, time_text
from rl_eventlog.durable import file_system_time, make_folder, publish_exclusively, write_durably
from rl_eventlog.errors import IdentityError, OpenError
from rl_eventlog.host import host_name, process_facts
from rl_eventlog.ids import new_ulid
from rl_eventlog.layout import LAYOUT_VERSION, RunLayout, escape_run_name
from rl_eventlog.types import FORMAT_VERSION, Identity

from .mounts import file_system
from .restarts import counted_on_disk
from .whoami import LAUNCH_VARIABLE, WhoAmI

Resume = Literal["allow", "never", "must"]
_TORN_LOOKS, _TORN_SECONDS = 20, 0.05
_MAX_BEATS = 64  # enough to tell the last step of a large run
_FLEETING = {"tmpfs": "memory", "ramfs": "memory", "overlay": "a container's own layer"}


@dataclass(frozen=True, slots=True)
class Labels:
    """How people call the run; repeated in every writer's document."""

    project: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None


@dataclass(frozen=True, slots=True)
class Registration:
    """A writer that has entered its run."""

    layout: RunLayout
    identity: Identity
    run: str
    document: bytes
    """What it wrote about itself."""
    warnings: tuple[str, ...]


def run_folder(root: str | os.PathLike[str] | None, run: str | None, who: WhoAmI, writer: str) -> tuple[Path, str]:
    """Where the run lies, and its display name.

    Raises:
        IdentityError: there are several processes and nothing names the run, or its name cannot be used.
        OpenError: the root is relative and the process's folder was removed.
    """
    name = run or os.environ.get("RLEVENTLOG_RUN") or who.default_run
    if not name:
        if who.rank.world_size is not None and who.rank.world_size > 1:
            raise IdentityError(
                f"{who.rank.world_size} processes (from {who.rank.source}) need one run name and none is given: "
                'pass run="...", or set RLEVENTLOG_RUN in the environment of all of them'
            )
        name = f"{now_utc():%Y%m%d-%H%M%S}-{writer[-6:]}"
    base = os.environ.get("RLEVENTLOG_DIR")
    folder = Path(base or ("runs" if root is None else "")) / (root or "")
    try:
        return Path(os.path.abspath(folder)) / escape_run_name(name), name  # noqa: PTH100 -- links stay links
    except OSError as error:
        raise OpenError(f"{folder}: this process's own folder is gone ({error}): pass an absolute root") from error
    except ValueError as error:
        raise IdentityError(str(error)) from error


def register(
    path: Path,
    run: str,
    who: WhoAmI,
    *,
    writer: str,
    labels: Labels,
    resume: Resume,
    resume_step: int | None,
    forked_from: str | None,
    parent_run: str | None,
    beat_seconds: float,
    provenance: Mapping[str, Any] | None,
) -> Registration:
    """Enter the run at `path`.

    Raises:
        OpenError: the folder cannot be made or written, or `resume` forbids it.
    """
    layout = RunLayout(path)
    try:
        who = replace(who, launch=counted_on_disk(layout, who.launch))
        seen = _launches_seen(layout, who)
        _check_resume(path, run, resume, seen)
        for folder in (layout.launches, layout.writers):
            make_folder(folder)
        run_uid = _run_uid(layout)
        publish_exclusively(
            layout.launch(who.launch.id),
            encode_document(
                {
                    "launch": who.launch.id,
                    "created": time_text(now_utc()),
                    "restart_count": who.launch.restart_count,
                    "source": who.launch.source,
                }
            ),
        )
        split = forked_from is None and _may_be_split(who) and bool(_launches_seen(layout, who))
        identity = Identity(run_uid, writer, who.launch.id, who.role, who.rank.rank, who.data_rank, host_name())
        document = _writer_document(identity, run, who, labels) | {
            "opened_on_disk": time_text(datetime.fromtimestamp(file_system_time(layout.writers), timezone.utc)),
            "launches_seen": seen,
            "resume_step": resume_step,
            "forked_from": forked_from,
            "parent_run": parent_run,
            "beat_seconds": beat_seconds,
            "provenance": provenance,
        }
        encoded = encode_document(document)
        write_durably(layout.writer(writer), encoded)
    except OpenError:
        raise
    except OSError as error:
        raise OpenError(
            f"cannot write the run {run!r} at {path}: {error.strerror or error} ({error.filename or path}): "
            "choose a folder this process may write"
        ) from error
    if seen and who.rank.rank in (0, None) and forked_from is None:
        _say_joined(layout, run, seen)
    if split:
        _say_split(layout, run, who)
    return Registration(layout, identity, run, encoded, tuple(_place_warnings(path, run)))


def _run_uid(layout: RunLayout) -> str:
    """The uid in run.json; where that is missing or torn, the earliest writer knows; else a new one."""
    run_uid = _uid_in(layout.run_json) or _uid_of_writers(layout) or new_ulid()
    document = {"run_uid": run_uid, "created": time_text(now_utc()), "layout_version": LAYOUT_VERSION}
    if publish_exclusively(layout.run_json, encode_document(document)):
        return run_uid
    for _ in range(_TORN_LOOKS):  # without hard links its maker may still be at it
        if found := _uid_in(layout.run_json) or _uid_of_writers(layout):
            return found
        time.sleep(_TORN_SECONDS)
    return run_uid


def _uid_of_writers(layout: RunLayout) -> str | None:
    documents = sorted(path for path in layout.writers.glob("*.json") if not path.name.endswith(".end.json"))
    return next(filter(None, map(_uid_in, documents)), None)


def _uid_in(path: Path) -> str | None:
    try:
        return str(read_document(path)["run_uid"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _launches_seen(layout: RunLayout, who: WhoAmI) -> list[str]:
    """Launches on disk, oldest first, our own left out."""
    own = layout.launch(who.launch.id).name
    found = [path for path in layout.launches.glob("*.json") if path.name != own]
    return [path.stem for path in sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))]


def _check_resume(path: Path, run: str, resume: Resume, seen: list[str]) -> None:
    if resume == "never" and seen:
        raise OpenError(f'the run {run!r} exists at {path} and resume="never": choose another name')
    if resume == "must" and not seen:
        raise OpenError(f'there is no run {run!r} to resume at {path} and resume="must": check name and root')


def _writer_document(identity: Identity, run: str, who: WhoAmI, labels: Labels) -> dict[str, Any]:
    return {
        "writer": identity.writer,
        "run_uid": identity.run_uid,
        "name": run,
        "project": labels.project,
        "group": labels.group,
        "tags": list(labels.tags),
        "notes": labels.notes,
        "role": identity.role,
        "rank": identity.rank,
        "world_size": who.rank.world_size,
        "data_rank": identity.data_rank,
        "node": identity.node,
        **process_facts(),
        "opened": time_text(now_utc()),
        "launch": identity.launch,
        "launch_source": who.launch.source,
        "restart_count": who.launch.restart_count,
        "restart_source": who.launch.restart_source,
        "rank_source": who.rank.source,
        "actor": who.actor,
        "library_version": version("rl-eventlog"),
        "format_version": FORMAT_VERSION,
    }


def _say_joined(layout: RunLayout, run: str, seen: list[str]) -> None:
    """One line, so that a name typed twice by mistake is noticed."""
    oldest = None
    for name in seen:
        try:
            created = parse_time(str(read_document(layout.launches / f"{name}.json")["created"]))
        except (OSError, ValueError, KeyError):
            continue
        oldest = created if oldest is None else min(oldest, created)
    age = f", begun {_age((now_utc() - oldest).total_seconds())} ago" if oldest else ""
    step = _last_step(layout)
    reached = "" if step is None else f", last step {step}"
    _say(f"joining the existing run {run!r} after {len(seen)} earlier launch(es){reached}{age}: {layout.path}")


def _may_be_split(who: WhoAmI) -> bool:
    """Whether ranks of one start may have taken themselves for several: nothing but processes tells them apart."""
    return (who.rank.world_size or 1) > 1 and who.launch.source in ("process", "parent")


def _say_split(layout: RunLayout, run: str, who: WhoAmI) -> None:
    """One line on every such rank: where each has its own shell, it is the only one to see its shell."""
    number = "?" if who.rank.rank is None else who.rank.rank
    _say(
        f"WARNING: rank {number} of {who.rank.world_size} has no launch id from a launcher, and the run {run!r} holds "
        f"another launch: ranks started together from separate shells count as restarts, one attempt each. Give all of "
        f"them the same {LAUNCH_VARIABLE} (or launch_id=), another one at each restart: {layout.path}"
    )


def _say(line: str) -> None:
    with suppress(OSError, ValueError):  # nobody listens
        print(f"rl-eventlog: {line}", file=sys.stderr)  # noqa: T201 -- lines for people, on stderr


def _last_step(layout: RunLayout) -> int | None:
    """The highest step in the heartbeats of the youngest writers."""
    steps: list[int] = []
    for path in sorted(layout.writers.glob("*.beat"), reverse=True)[:_MAX_BEATS]:
        with suppress(OSError, ValueError):
            step = (decode_beat(path.read_bytes()) or {}).get("step")
            if isinstance(step, int):
                steps.append(step)
    return max(steps, default=None)


def _age(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _place_warnings(path: Path, run: str) -> list[str]:
    warnings = []
    kind = file_system(path)
    if kind in _FLEETING:
        warnings.append(f"{path} lies in {_FLEETING[kind]} ({kind}): it will not outlive the machine or container")
    if "/ray/session_" in str(path):
        warnings.append(f"{path} lies in Ray's session folder, which Ray removes: pass an absolute root")
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    # as a number of its own: task 1 is not in run-17, nor in qwen-1.5b
    if task and not re.search(rf"(?<!\d)(?<!\d\.)0*{re.escape(task)}(?![0-9A-Za-z])(?!\.\d)", run):
        warnings.append(f"all tasks of the array job write to one run, {run!r}: put SLURM_ARRAY_TASK_ID in its name")
    return warnings


def inherit_launch(who: WhoAmI) -> None:
    """Children of a process that started the run by itself belong to its launch."""
    if who.launch.source == "process":
        os.environ[LAUNCH_VARIABLE] = who.launch.id
