"""The child process of `_wandb_process`: the only module that imports the W&B client.

- It reads one JSON command a line from stdin and answers each with one JSON line on what was its
  stdout, lines that say it still works before it; all that the client prints goes to stderr.
- When stdin closes it ends at once, without the client's exit hooks.
- `finish` of the client is never believed: it reports success after a refused upload and on a full
  disk. Rows count once the server itself reports them, or once they were read back from the file.
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import requests
import wandb
from wandb.apis.public.runs import RunNotFoundError
from wandb.sdk.lib.service.service_connection import WandbApiFailedError

from rl_eventlog.sinks._wandb_process import AXES_KEY, CURSOR_KEY, ORIGIN_KEY
from rl_eventlog.sinks.wandb_file import read_records

_REFUSED = {400, 401, 403, 404, 410, 413, 422}
_STATUS = re.compile(r"(?:error|HTTP) (\d{3})\b")
_PROBE_SECONDS = 10.0
_FILE_SECONDS = 20.0  # without growth; the client flushes every 15 s
_FINISH_SHARE = 0.8  # the rest is for asking what arrived
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 2.0

_ROWS_A_SIGN_OF_LIFE = 100

Json = dict[str, Any]
Working = Callable[[], None]
"""Tells the caller that there is progress: its time begins anew."""


class FailureError(Exception):
    """A failure this module found by itself.

    Attributes:
        refused: True where a repetition cannot help.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


def settings(_working: Working) -> Json:
    """Where the client would send, by its own settings."""
    found = wandb.setup().settings
    return {"base_url": found.base_url, "entity": found.entity}


def look(_working: Working, *, entity: str | None, project: str, run_id: str, seconds: float) -> Json:
    """What the server holds of a run: rows, cursor and axes; `rows` is 0 where it knows no such run."""
    _probe(seconds)
    api = wandb.Api(timeout=max(1, int(seconds)))
    entity = entity or api.default_entity
    try:
        run = api.run(f"{entity}/{project}/{run_id}")
    except wandb.errors.CommError as error:
        if not isinstance(error.exc, RunNotFoundError):
            raise
        url = f"{wandb.setup().settings.app_url}/{entity}/{project}/runs/{run_id}"
        return {"entity": entity, "url": url, "rows": 0, "cursor": None, "axes": {}}
    return {
        "entity": entity,
        "url": run.url,
        "rows": run.lastHistoryStep + 1,
        "cursor": run.config.get(CURSOR_KEY),
        "axes": run.config.get(AXES_KEY) or {},
    }


def send(working: Working, *, about: Json, content: str, offline: bool, exit_code: int | None, seconds: float) -> Json:
    """Send the rows of a file through one client run, and wait until the server reports them.

    Args:
        working: called while rows are handed to the client.
        about: `entity`, `project`, `id`, `name`, `group`, `tags`, `notes` and `dir` of `wandb.init`.
        content: path of a file: first line `config`, `axes`, `base` (rows before these) and `total`
            (rows with these), then a JSON line a row.
        offline: write a folder and ask no server.
        exit_code: final state of the run; None leaves the state as it is.
        seconds: the longest wait for the server, before and after the rows are handed over.
    """
    if not offline:
        _probe(seconds)
    lines = _json_lines(Path(content))
    head = next(lines)
    base, total = head["base"], head["total"]
    run = wandb.init(
        **about,
        mode="offline" if offline else "online",
        resume="allow",
        settings=_settings(offline, exit_code is not None, seconds),
    )
    held = base if offline else run.starting_step
    _check_held(held, base, total)
    run.config.update(head["config"], allow_val_change=True)  # type: ignore[no-untyped-call]
    _define(run, head["axes"])
    for step, row in enumerate(lines, base):
        _log(run, row, step, held)
        if step % _ROWS_A_SIGN_OF_LIFE == 0:
            working()
    working()
    deadline = time.monotonic() + seconds
    folder, url, path = Path(run.settings.sync_dir), run.url, f"{run.entity}/{run.project}/{run.id}"
    run.finish(exit_code=exit_code or 0)
    if offline:
        _confirm_file(folder / f"run-{about['id']}.wandb", base, total, working)
        return {"url": str(folder)}
    ours = {key: head["config"][key] for key in (CURSOR_KEY, ORIGIN_KEY) if key in head["config"]}
    _confirm(path, total, ours, folder / "logs" / "debug-internal.log", deadline)
    return {"url": url}


def _settings(offline: bool, final: bool, seconds: float) -> wandb.Settings:
    """Nothing about this process belongs to the run: it may be a login node, months later."""
    return wandb.Settings(
        console="off",
        silent=True,
        disable_git=True,
        save_code=False,
        init_timeout=seconds,
        finish_timeout=_FINISH_SHARE * seconds,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        x_skip_transaction_log=not offline,
        x_update_finish_state=final,
    )


def _check_held(held: int, base: int, total: int) -> None:
    if held < base:
        # a server may report an old number right after a write: sending now would overwrite rows
        raise FailureError(f"the server reports {held} rows of the run, {base} were confirmed before: try again later")
    if held > total:
        raise FailureError(
            f"the server holds {held} rows of the run, {total} were expected: something else writes", refused=True
        )


def _define(run: wandb.Run, axes: dict[str, list[str]]) -> None:
    run.define_metric("attempt", hidden=True)
    for key, names in axes.items():
        run.define_metric(key, hidden=True)
        for name in names:
            if "*" not in name:  # the client takes it for a pattern
                run.define_metric(name, step_metric=key, step_sync=False)


def _log(run: wandb.Run, row: Json, step: int, held: int) -> None:
    values = row["values"]
    if row["table"] is not None:
        name = row["table"]["name"]
        table = wandb.Table(columns=row["table"]["columns"], data=row["table"]["data"], allow_mixed_types=True)
        # Uploads the table's file under a name that depends on nothing but name, step and content. It
        # is done for rows the server has, too: a kill may have come between a row and its file.
        table.bind_to_run(run, name, step)  # type: ignore[no-untyped-call]
        values[name] = table
    if step >= held:
        run.log(values, step=step)


def _confirm_file(path: Path, base: int, total: int, working: Working) -> None:
    """Wait until the file holds the rows: the client still writes when `finish` returns."""
    size, problem = -1, ""
    pause, deadline = _SHORTEST_PAUSE_SECONDS, 0.0
    while True:
        if path.exists() and path.stat().st_size != size:
            size, deadline = path.stat().st_size, time.monotonic() + _FILE_SECONDS
            working()
            try:
                if _steps(path) == list(range(base, total)):
                    return
                problem = "rows are missing"
            except ValueError as error:
                problem = str(error)
        elif time.monotonic() > deadline:
            raise FailureError(f"the client did not write all rows to {path}: {problem}. Is the disk full?")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _steps(path: Path) -> list[int]:
    """Numbers of the rows in a file that the client has ended."""
    steps, ended = [], False
    for record in read_records(path):
        kind = record.WhichOneof("record_type")
        ended = ended or kind == "exit"
        if kind == "history":
            steps.append(record.history.step.num)
    if not ended:
        raise ValueError("its end is missing")
    return steps


def _confirm(path: str, total: int, config: Json, log: Path, deadline: float) -> None:
    """Wait until the server reports the last row and holds the entries of `config`."""
    run = wandb.Api(timeout=max(1, int(deadline - time.monotonic()))).run(path)
    missing = ""
    for pause in _pauses(deadline):
        rows = run.lastHistoryStep + 1
        if rows > total:
            raise FailureError(
                f"the server holds {rows} rows of {path}, {total} were sent: something else writes", refused=True
            )
        if rows == total and config.items() <= run.load(force=True)["config"].items():
            return
        missing = f"rows {rows} to {total - 1} are missing" if rows < total else "its config is missing"
        if (status := _fatal_status(log)) in _REFUSED:
            raise FailureError(f"the server refused rows of {path} with HTTP status {status}: {missing}", refused=True)
        time.sleep(pause)
    raise FailureError(f"the server did not confirm what was sent to {path} in time: {missing}")


def _pauses(deadline: float) -> Iterator[float]:
    """Growing pauses until the deadline, at least one."""
    pause = _SHORTEST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        if time.monotonic() + pause > deadline:
            return


def _fatal_status(log: Path) -> int | None:
    """The HTTP status that ended the upload of rows: the client only writes it to its own log."""
    status = None
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        if match := re.search(r"filestream: fatal error.*?: (\d{3}) ", line):
            status = int(match[1])
    return status


def _probe(seconds: float) -> None:
    """Fail early where no server answers: the client itself would wait for ever."""
    url = wandb.setup().settings.base_url
    try:
        requests.get(url, timeout=min(_PROBE_SECONDS, seconds), stream=True, allow_redirects=False).close()
    except requests.exceptions.SSLError:
        pass  # it answers; the client has its own settings for certificates
    except (requests.ConnectionError, requests.Timeout) as error:
        raise FailureError(f"no server answers at {url}: {type(error).__name__}") from error
    except requests.RequestException as error:
        raise FailureError(f"{url} is no address of a server: {error}", refused=True) from error


def _json_lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _http_status(error: BaseException | None) -> int | None:
    while error is not None:
        if isinstance(error, WandbApiFailedError) and error.response is not None and error.response.http_status:
            return int(error.response.http_status)
        if match := _STATUS.search(str(error)):
            return int(match[1])
        error = error.__cause__
    return None


def _refused(error: Exception) -> bool:
    if isinstance(error, FailureError):
        return error.refused
    status = _http_status(error)
    if status is not None:
        return status in _REFUSED
    return isinstance(error, wandb.errors.UsageError | TypeError | ValueError)


FUNCTIONS: dict[str, Callable[..., Json]] = {"settings": settings, "look": look, "send": send}


def _read_commands(commands: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        commands.put(line)
    os._exit(0)  # the caller is gone or done: the client's exit hooks could wait for the network


def main() -> None:
    """Answer commands until stdin closes."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)

        def tell(answer: Json) -> None:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

        commands: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()

        def working() -> None:
            tell({"working": True})

        while True:
            command = json.loads(commands.get())
            try:
                answer: Json = {"result": FUNCTIONS[command["function"]](working, **command["arguments"])}
            except Exception as error:  # noqa: BLE001 -- whatever it is, the caller has to hear of it
                answer = {"refused": _refused(error), "message": f"W&B: {error}"}
            tell(answer)
