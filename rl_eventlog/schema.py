"""The Arrow schemas of all tables, read from ``schemas/*.json``, their single source.

The open form of a table has the columns stored ``open`` or ``both``; the sealed form adds the
identity columns. Columns keep the order of the JSON file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa

from .errors import FormatError, SchemaVersionError, SegmentError
from .types import FORMAT_VERSION

TABLES = ("metrics", "timings", "hparams", "gpu_samples", "samples", "distributions", "artifacts", "markers")

_PLAIN_TYPES = {
    "utf8": pa.string(),
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "timestamp[us, UTC]": pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the format."""

    name: str
    open: pa.Schema
    """Columns of an open segment."""
    sealed: pa.Schema
    """Columns of a sealed segment: identity first."""


def _folder() -> Path:
    """The wheel carries the schemas inside the package; a checkout has them beside it."""
    inside = Path(str(files("rl_eventlog"))) / "schemas"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "schemas"


def read_json(name: str) -> dict[str, Any]:
    """One file of ``schemas/`` as it stands."""
    document: dict[str, Any] = json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))
    return document


def arrow_type(description: str | dict[str, Any]) -> pa.DataType:
    """The Arrow type of a ``type`` in the JSON files."""
    if isinstance(description, str):
        return _PLAIN_TYPES[description]
    if "list" in description:
        return pa.list_(arrow_type(description["list"]))
    return pa.struct([pa.field(name, arrow_type(kind)) for name, kind in description["struct"].items()])


@cache
def table(name: str) -> Table:
    """The table of that name.

    Raises:
        FormatError: there is no such table in this version.
    """
    if name not in TABLES:
        raise FormatError(f"unknown table {name!r}: format {FORMAT_VERSION} has {', '.join(TABLES)}")
    columns = read_json(name)["columns"]
    fields = {c["name"]: pa.field(c["name"], arrow_type(c["type"]), nullable=c["nullable"]) for c in columns}
    return Table(
        name,
        open=pa.schema([fields[c["name"]] for c in columns if c["stored"] in ("open", "both")]),
        sealed=pa.schema([fields[c["name"]] for c in columns if c["stored"] in ("sealed", "both")]),
    )


def check_version(version: str, where: Path) -> None:
    """Refuse what a newer major version wrote; a newer minor is welcome.

    Raises:
        SchemaVersionError: the major version is newer than ours.
        SegmentError: the text is no version.
    """
    major, _, minor = version.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        raise SegmentError(where, f"format version {version!r} is not of the form major.minor")
    if int(major) > int(FORMAT_VERSION.partition(".")[0]):
        raise SchemaVersionError(
            f"{where}: written in format {version}, this rl-eventlog reads up to {FORMAT_VERSION}: upgrade rl-eventlog"
        )
