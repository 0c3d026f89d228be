"""The JSON files: well-formed, alike where they must be, and the Arrow schemas built from them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rl_eventlog.errors import FormatError, SchemaVersionError, SegmentError
from rl_eventlog.schema import TABLES, arrow_type, check_version, read_json, table
from rl_eventlog.types import FORMAT_VERSION

FOLDER = Path(__file__).parents[2] / "schemas"
DOCUMENTS = ("run", "launch", "writer", "writer_beat", "writer_end")
IDENTITY = ["writer", "seq", "launch", "role", "rank", "data_rank", "node"]
COMMON = ["step", "time"]
PLAIN = {"utf8", "bool", "int32", "int64", "float32", "float64", "timestamp[us, UTC]"}


def columns(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_json(name)["columns"]
    return found


def is_type(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind in PLAIN
    assert len(kind) == 1
    if "list" in kind:
        return is_type(kind["list"])
    return bool(kind["struct"]) and all(is_type(part) for part in kind["struct"].values())


def test_every_json_file_is_a_table_or_a_document() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {*TABLES, *DOCUMENTS}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_names_itself_and_describes_each_column_fully(name: str) -> None:
    document = read_json(name)
    assert set(document) == {"table", "version", "description", "columns"}
    assert document["table"] == name
    assert document["version"] == FORMAT_VERSION
    names = [column["name"] for column in document["columns"]]
    assert len(set(names)) == len(names)
    for column in document["columns"]:
        assert set(column) == {"name", "type", "unit", "nullable", "stored", "since", "meaning"}
        assert re.fullmatch(r"[a-z][a-z0-9_]*", column["name"])
        assert is_type(column["type"])
        assert column["stored"] in {"open", "sealed", "both"}
        assert isinstance(column["nullable"], bool)
        assert column["unit"] is None or column["unit"]
        assert re.fullmatch(r"\d+\.\d+", column["since"])
        assert column["meaning"]


@pytest.mark.parametrize("name", TABLES)
def test_identity_and_common_columns_are_the_same_in_all_tables(name: str) -> None:
    head = columns(name)[: len(IDENTITY) + len(COMMON)]
    assert [column["name"] for column in head] == IDENTITY + COMMON
    assert [column["stored"] for column in head] == ["sealed"] * len(IDENTITY) + ["both"] * len(COMMON)
    assert head == columns("metrics")[: len(head)]


@pytest.mark.parametrize("name", TABLES)
def test_columns_that_came_later_are_nullable_and_last(name: str) -> None:
    since = [tuple(map(int, column["since"].split("."))) for column in columns(name)]
    assert since == sorted(since)
    assert all(column["nullable"] for column in columns(name) if column["since"] != "1.0")


@pytest.mark.parametrize("name", TABLES)
def test_units_are_in_the_names_of_measured_columns(name: str) -> None:
    suffixes = {"_seconds": "s", "_bytes": "bytes", "_watts": "W", "_celsius": "degrees Celsius", "_tokens": "tokens"}
    for column in columns(name):
        for suffix, unit in suffixes.items():
            if column["name"].endswith(suffix):
                assert column["unit"] == unit


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_names_itself_and_describes_each_field_fully(name: str) -> None:
    document = read_json(name)
    assert set(document) == {"document", "file", "version", "description", "fields"}
    assert document["document"] == name
    assert document["version"] == FORMAT_VERSION
    for field in document["fields"]:
        assert set(field) == {"name", "type", "nullable", "since", "meaning"}
        assert field["type"] == "json" or is_type(field["type"])
        assert field["meaning"]


@pytest.mark.parametrize("name", TABLES)
def test_open_and_sealed_schemas_are_the_columns_of_the_json_in_order(name: str) -> None:
    schema = table(name)
    for form, arrow in (("open", schema.open), ("sealed", schema.sealed)):
        expected = [column for column in columns(name) if column["stored"] in (form, "both")]
        assert arrow.names == [column["name"] for column in expected]
        assert [field.nullable for field in arrow] == [column["nullable"] for column in expected]
        assert [field.type for field in arrow] == [arrow_type(column["type"]) for column in expected]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("utf8", pa.string()),
        ("bool", pa.bool_()),
        ("int32", pa.int32()),
        ("int64", pa.int64()),
        ("float32", pa.float32()),
        ("float64", pa.float64()),
        ("timestamp[us, UTC]", pa.timestamp("us", tz="UTC")),
        ({"list": "int32"}, pa.list_(pa.int32())),
        (
            {"list": {"struct": {"key": "utf8", "value": "float64"}}},
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.float64())])),
        ),
    ],
)
def test_types_of_the_json_are_arrow_types(kind: Any, expected: pa.DataType) -> None:
    assert arrow_type(kind) == expected


def test_an_unknown_table_is_a_clear_error() -> None:
    with pytest.raises(FormatError, match=r"unknown table 'metric': format 1\.0 has metrics, timings"):
        table("metric")


@pytest.mark.parametrize("version", ["1.0", "1.7", "0.9", "1.10"])
def test_our_major_version_and_older_ones_are_read(version: str) -> None:
    check_version(version, Path("x"))


@pytest.mark.parametrize("version", ["2.0", "10.3"])
def test_a_newer_major_version_is_refused_and_the_remedy_named(version: str) -> None:
    with pytest.raises(SchemaVersionError, match=rf"x: written in format {version}.*upgrade"):
        check_version(version, Path("x"))


@pytest.mark.parametrize("version", ["", "1", "1.", "one.two", "-1.0", "1.0.0", "²·0"])
def test_what_is_no_version_is_named(version: str) -> None:
    with pytest.raises(SegmentError, match=r"not of the form major\.minor"):
        check_version(version, Path("x"))
