"""MLflow's client, quiet and bounded.

- Telemetry stays off unless the user turned it on; nothing is written to stdout.
- Inside `calls` every request ends within the time given, unless the user set MLflow's own variables.
- Its errors leave as `SinkUnavailableError` or `SinkRejectedError`, without passwords of an address.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from rl_eventlog.errors import MissingDependencyError, SinkRejectedError, SinkUnavailableError

_SQLITE = "sqlite:///"
_PASSWORD = re.compile(r"(?<=://)[^/\s@]+@")
_QUIET = {"mlflow": logging.CRITICAL, "alembic": logging.WARNING, "urllib3.connectionpool": logging.ERROR}
#: statuses of the family "you did wrong" that only mean "not now"
_TRANSIENT = frozenset({408, 429, 499})


def import_client() -> None:
    """Import MLflow with its telemetry off.

    Raises:
        MissingDependencyError: it is not installed.
    """
    with _environment({"MLFLOW_DISABLE_TELEMETRY": "true"}):
        try:
            import mlflow  # noqa: F401
        except ModuleNotFoundError as error:
            raise MissingDependencyError("mlflow", "mlflow") from error


def resolve_uri(tracking_uri: str | None) -> str:
    """The tracking URI as MLflow takes it: its own default for None, and absolute for sqlite."""
    from mlflow import get_tracking_uri

    uri = tracking_uri or get_tracking_uri()
    if not uri.startswith(_SQLITE):
        return uri.rstrip("/")
    path, mark, options = uri[len(_SQLITE) :].partition("?")
    return _SQLITE + str(Path(unquote(path)).absolute()).replace("%", "%25") + mark + options


def without_credentials(uri: str) -> str:
    """The URI without user and password, its host in lower case."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2].lower())) if parts.netloc else uri


def sqlite_path(uri: str) -> Path | None:
    """The file of an sqlite URI, None for other stores."""
    return Path(unquote(uri[len(_SQLITE) :].partition("?")[0])) if uri.startswith(_SQLITE) else None


def check_store(uri: str) -> None:
    """Refuse at once what MLflow would refuse after minutes of retries, or take twice.

    Raises:
        SinkRejectedError: a file store, or an sqlite file that cannot be used.
    """
    if urlsplit(uri).scheme in ("", "file"):
        # it appends: what is sent again after a kill would be there twice
        raise SinkRejectedError(
            f"{uri}: MLflow's file store cannot be synced to exactly once: "
            "give --tracking-uri sqlite:///mlflow.db or the address of a server"
        )
    if path := sqlite_path(uri):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA schema_version").fetchone()
        except (OSError, sqlite3.DatabaseError) as error:
            if "locked" not in str(error):
                raise SinkRejectedError(f"{path}: {error}: give another --tracking-uri") from error


@contextmanager
def calls(timeout_seconds: float) -> Iterator[None]:
    """Bound and quieten the client's calls in this block, and translate its errors.

    Raises:
        SinkUnavailableError: the server did not answer in time, or is not well.
        SinkRejectedError: the server refused for good.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    with _environment(_limits(timeout_seconds)), _quiet():
        try:
            yield
        except MlflowException as error:
            status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]
            refused = 400 <= status < 500 and status not in _TRANSIENT
            raise (SinkRejectedError if refused else SinkUnavailableError)(_message(error)) from error
        except ImportError as error:  # the driver of a database
            raise SinkRejectedError(_message(error)) from error
        except (OSError, SQLAlchemyError) as error:
            raise SinkUnavailableError(_message(error)) from error


def _limits(timeout_seconds: float) -> dict[str, str]:
    # the client waits 0, 4 and 8 s before its retries, and up to 1 s more before the last two
    retries, waits = (3, 14) if timeout_seconds >= 60 else (1, 0)
    return {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(retries),
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(max(1, int((timeout_seconds - waits) / (retries + 1)))),
        "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    }


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables that the user did not set, and take them away again."""
    ours = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave the telling to whoever catches the error."""
    loggers = {logging.getLogger(name): level for name, level in _QUIET.items()}
    before = {logger: logger.level for logger in loggers}
    for logger, level in loggers.items():
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)


def _message(error: Exception) -> str:
    return f"MLflow: {_PASSWORD.sub('', str(error))}"
