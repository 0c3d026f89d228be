"""A loopback W&B server for the real client.

- It answers the requests an online run, `wandb sync` and `wandb.Api().run()` make, and nothing more.
- History lines are kept by run id and line number, as they were sent: `StoredRun.rows` parses them.
- Faults are plain attributes of `WandbServer`; they act from the next request on.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from typing_extensions import Self

ENTITY = "loopback"
API_KEY = "0" * 40
Json = dict[str, Any]
_REFUSAL: Json = {"errors": [{"message": "refused on purpose"}]}


@dataclass
class StoredRun:
    """What the server holds of one run."""

    id: str
    entity: str
    project: str
    number: int
    config: Json = field(default_factory=dict)
    """As sent: `{key: {"value": ...}}` with the client's own `_wandb`."""
    summary: Json = field(default_factory=dict)
    about: Json = field(default_factory=dict)
    """displayName, notes, tags, groupName, jobType as last sent."""
    lines: dict[int, str] = field(default_factory=dict)
    rewritten: int = 0
    """History lines that were sent to a number already taken."""
    conflicting: int = 0
    """Those of them whose content differed."""
    files: dict[str, bytes] = field(default_factory=dict)
    exit_code: int | None = None
    """Sent with the last complete file_stream, None while the run is open."""

    @property
    def rows(self) -> list[Json]:
        """History rows in line order."""
        return [json.loads(self.lines[number]) for number in sorted(self.lines)]

    @property
    def last_step(self) -> int:
        return max((row["_step"] for row in self.rows), default=-1)

    @property
    def values(self) -> Json:
        """The config as a user sees it."""
        return {key: item["value"] for key, item in self.config.items() if key != "_wandb"}


class WandbServer:
    """Use as a context manager; `url` is the base URL to give to the client."""

    def __init__(self) -> None:
        self.runs: dict[str, StoredRun] = {}
        self.operations: list[str] = []
        """Names of the GraphQL operations and `file_stream`, `file`, in the order they came."""
        self.graphql_status: int | None = None
        self.file_stream_status: int | None = None
        self.hang = False
        """Leave every request unanswered until the server closes."""
        self.cut_after_rows: int | None = None
        """Keep this many more history rows, then drop every file_stream connection."""
        self.before_answer: Callable[[str], None] | None = None
        """Called with the name of each operation after it took effect and before it is answered."""
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self._server = _QuietServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def run(self, run_id: str) -> StoredRun:
        return self.runs[run_id]

    # GraphQL, called with the lock held; the client tolerates an empty answer to other operations

    def graphql(self, operation: str, variables: Json) -> Json:
        answers: dict[str, Callable[[Json], Json]] = {
            "Viewer": self._viewer,
            "GetDefaultEntity": self._default_entity,
            "UpsertBucket": self._upsert,
            "RunResumeStatus": self._resume_status,
            "CreateRunFiles": self._create_files,
            "Run": self._run,
            "RunHistoryKeys": self._run_history_keys,
        }
        return answers[operation](variables) if operation in answers else {}

    def _viewer(self, _: Json) -> Json:
        teams = {"edges": [{"node": {"name": ENTITY}}]}
        return {"viewer": {"id": "1", "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}", "teams": teams}}

    def _default_entity(self, variables: Json) -> Json:
        return {"viewer": {"id": "1", "entity": ENTITY}}

    def _upsert(self, variables: Json) -> Json:
        run_id = variables.get("name") or next(r.id for r in self.runs.values() if _storage_id(r) == variables["id"])
        new = run_id not in self.runs
        if new:
            entity, project = variables.get("entity") or ENTITY, variables.get("project") or "uncategorized"
            self.runs[run_id] = StoredRun(run_id, entity, project, len(self.runs))
        run = self.runs[run_id]
        if variables.get("config"):
            run.config.update(json.loads(variables["config"]))
        if variables.get("summaryMetrics"):
            run.summary = json.loads(variables["summaryMetrics"])
        for key in ("displayName", "notes", "tags", "groupName", "jobType"):
            if variables.get(key) is not None:
                run.about[key] = variables[key]
        return {"upsertBucket": {"bucket": self._bucket(run), "inserted": new}}

    def _bucket(self, run: StoredRun) -> Json:
        return {
            "id": _storage_id(run),
            "name": run.id,
            "displayName": run.about.get("displayName") or run.id,
            "config": json.dumps(run.config),
            "sweepName": None,
            "project": {"id": "7", "name": run.project, "entity": {"id": "1", "name": run.entity}},
            "historyLineCount": len(run.lines),
        }

    def _resume_status(self, variables: Json) -> Json:
        run = self.runs.get(variables["name"])
        if run is None:
            return {"model": {"id": "7", "name": variables["project"], "bucket": None}}
        tail = [run.lines[number] for number in sorted(run.lines)[-1:]]
        bucket = self._bucket(run) | {
            "summaryMetrics": json.dumps(run.summary),
            "historyTail": json.dumps(tail),
            "eventsTail": "[]",
            "eventsLineCount": 0,
            "logLineCount": 0,
            "tags": run.about.get("tags") or [],
            "notes": run.about.get("notes"),
            "wandbConfig": json.dumps({"t": 1} if "_wandb" in run.config else {}),
        }
        return {"model": {"id": "7", "name": run.project, "entity": {"name": run.entity}, "bucket": bucket}}

    def _create_files(self, variables: Json) -> Json:
        run_id, names = variables["run"], variables["files"]
        files = [{"name": name, "uploadUrl": f"{self.url}/upload/{run_id}/{name}"} for name in names]
        return {"createRunFiles": {"runID": run_id, "uploadHeaders": [], "files": files}}

    def _run(self, variables: Json) -> Json:
        run = self.runs.get(variables["name"])
        if run is None or run.project != variables["project"]:
            return {"project": {"run": None}}
        about: Json = {"tags": [], "state": "finished", "historyKeys": self._history_keys(run)}
        return {
            "project": {
                "run": self._bucket(run) | about | {"projectId": "7", "summaryMetrics": json.dumps(run.summary)}
            }
        }

    def _run_history_keys(self, variables: Json) -> Json:
        run = self.runs.get(variables["name"])
        return {"project": {"run": run and {"historyKeys": self._history_keys(run)}}}

    def _history_keys(self, run: StoredRun) -> Json | None:
        return {"lastStep": run.last_step} if run.lines else None

    # the file stream

    def stream(self, run_id: str, body: Json) -> bool:
        """Store what came; False drops the connection."""
        run = self.runs[run_id]
        history = body.get("files", {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
        for number, line in enumerate(history["content"], history["offset"]):
            if self.cut_after_rows is not None:
                if self.cut_after_rows == 0:
                    return False
                self.cut_after_rows -= 1
            if number in run.lines:
                run.rewritten += 1
                run.conflicting += _canonical(run.lines[number]) != _canonical(line)
            run.lines[number] = line
        summary = body.get("files", {}).get("wandb-summary.json")
        if summary:
            run.summary = json.loads(summary["content"][0])
        run.exit_code = body.get("exitcode") if body.get("complete") else None
        return self.cut_after_rows != 0


def _storage_id(run: StoredRun) -> str:
    return f"storage-{run.number}"


def _canonical(line: str) -> str:
    """Equal for equal rows: key order and `_runtime` are the client's own, new in each sending."""
    return json.dumps({**json.loads(line), "_runtime": None}, sort_keys=True)


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that were killed break their connections: that is what some tests are about."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    owner: WandbServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._receive()
        self._reply(200, {})

    def do_PUT(self) -> None:
        body = self._receive()
        _, kind, run_id, name = unquote(self.path).split("/", 3)
        assert kind == "upload"
        with self.owner.lock:
            self.owner.operations.append("file")
            self.owner.runs[run_id].files[name] = body
        self._answer("file", 200, {})

    def do_POST(self) -> None:
        body = json.loads(self._receive() or b"{}")
        if self.path == "/graphql":
            self._graphql(body)
        elif self.path.endswith("/file_stream"):
            self._file_stream(self.path.split("/")[-2], body)
        else:
            self._reply(404, {})

    def _graphql(self, body: Json) -> None:
        match = re.search(r"(?:query|mutation)\s+(\w+)", body["query"])
        assert match is not None
        with self.owner.lock:
            self.owner.operations.append(match[1])
            status = self.owner.graphql_status
            data = self.owner.graphql(match[1], body.get("variables") or {}) if status is None else None
        self._answer(match[1], status or 200, {"data": data} if status is None else _REFUSAL)

    def _file_stream(self, run_id: str, body: Json) -> None:
        with self.owner.lock:
            self.owner.operations.append("file_stream")
            status = self.owner.file_stream_status
            kept = status is not None or self.owner.stream(run_id, body)
        self._answer("file_stream", status or 200, {} if status is None else _REFUSAL, drop=not kept)

    def _answer(self, operation: str, status: int, content: Json, *, drop: bool = False) -> None:
        if self.owner.before_answer is not None:
            self.owner.before_answer(operation)
        if drop:
            self.close_connection = True
        else:
            self._reply(status, content)

    def _receive(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.owner.hang:
            self.owner.closing.wait()
        return body

    def _reply(self, status: int, content: Json) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Stay quiet."""
