from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from rl_eventlog.schema import TABLES, table
from rl_eventlog.segment.arrays import build_array, build_scalar
from rl_eventlog.segment.same import same_rows


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_list(kind):
        return st.none() | st.lists(values_of(kind.value_type), max_size=4)
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    plain: st.SearchStrategy[Any] = {
        pa.string(): st.text(max_size=5),
        pa.bool_(): st.booleans(),
        pa.int32(): st.integers(-(2**31), 2**31 - 1),
        pa.int64(): st.integers(-(2**63), 2**63 - 1),
        pa.float32(): st.floats(width=32),
        pa.float64(): st.floats(),
        pa.timestamp("us", tz="UTC"): st.integers(0, 2**52),
    }[kind]
    return st.none() | plain


KINDS = {str(field.type): field.type for name in TABLES for field in table(name).sealed}


@pytest.mark.parametrize("name", KINDS)
def test_every_type_of_the_format_is_built_as_pyarrow_builds_it(name: str) -> None:
    kind = KINDS[name]

    @given(st.lists(values_of(kind), max_size=20))
    @settings(max_examples=40)
    def compare(values: list[Any]) -> None:
        built = build_array(values, kind)
        built.validate(full=True)
        assert same_rows(pa.table([built], names=["x"]), pa.table([pa.array(values, kind)], names=["x"]))

    compare()


@pytest.mark.parametrize(
    ("value", "kind", "error"),
    [
        ("x", pa.float64(), TypeError),
        (1.5, pa.int64(), TypeError),
        (2**63, pa.int64(), OverflowError),
        (2**31, pa.int32(), OverflowError),
        (3, pa.string(), TypeError),
        (b"x", pa.string(), TypeError),
        ("\ud800", pa.string(), UnicodeEncodeError),
        ([1, "x"], pa.list_(pa.int32()), TypeError),
        (3, pa.list_(pa.int32()), TypeError),
    ],
)
def test_what_is_not_of_the_type_is_refused(value: Any, kind: pa.DataType, error: type[Exception]) -> None:
    with pytest.raises(error):
        build_array([value], kind)


def test_scalars() -> None:
    assert build_scalar(1.5, pa.float64()).as_py() == 1.5
    assert build_scalar(None, pa.string()).as_py() is None
    noon = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
    micros = int(noon.timestamp() * 1_000_000)
    assert build_scalar(micros, pa.timestamp("us", tz="UTC")).as_py() == noon
