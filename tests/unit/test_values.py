from __future__ import annotations

import json
import math
import struct
from array import array
from collections import UserDict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from rl_eventlog import EventWriter
from rl_eventlog.writer.text import text_of, to_json
from rl_eventlog.writer.values import lookup, numbers, sort_values, step_of
from tests.support.raw import raw_rows

NAN, INF = float("nan"), float("inf")


def bits(value: float | None) -> bytes | None:
    return None if value is None else struct.pack("<d", value)


class Loud:
    def __float__(self) -> float:
        raise RuntimeError("no")


class Unnameable:
    def __str__(self) -> str:
        raise RuntimeError("no")


class NoAttributes:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no")


class NoItems(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "scalar"),
    [
        (1.5, 1.5),
        (3, 3.0),
        (True, 1.0),
        (False, 0.0),
        (-0.0, -0.0),
        (None, None),
        (INF, INF),
        (-INF, -INF),
        (np.float64(0.1), 0.1),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float16(0.1), float(np.float16(0.1))),
        (np.longdouble(0.5), 0.5),
        (np.int8(-3), -3.0),
        (np.uint64(2**40), float(2**40)),
        (np.bool_(True), 1.0),
        (np.array(2.5), 2.5),
        (np.array([[2.5]]), 2.5),
        (torch.tensor(2.5), 2.5),
        (torch.tensor([[2.5]]), 2.5),
        (torch.tensor(0.1, dtype=torch.float64), 0.1),
        (torch.tensor(0.1, dtype=torch.bfloat16), 0.10009765625),
        (torch.tensor([0.1], dtype=torch.float16), 0.0999755859375),
        (torch.tensor(0.5, dtype=torch.float8_e4m3fn), 0.5),
        (torch.tensor(7), 7.0),
        (torch.tensor(True), 1.0),
        (torch.tensor(2.5, requires_grad=True), 2.5),
        (torch.tensor([2.5]).to_sparse(), 2.5),
        (Decimal("0.25"), 0.25),
        (Fraction(1, 4), 0.25),
        (10**400, INF),
        (-(10**400), -INF),
    ],
)
def test_numbers_of_every_kind_are_scalars(value: Any, scalar: float | None) -> None:
    result = sort_values({"a": value})
    assert bits(result.scalars["a"]) == bits(scalar)
    assert (result.many, result.texts, result.skipped) == ({}, {}, {})


@pytest.mark.parametrize("value", [NAN, np.float32(NAN), torch.tensor(NAN), torch.tensor(NAN, dtype=torch.bfloat16)])
def test_nan_of_every_kind_is_nan_and_not_null(value: Any) -> None:
    scalar = sort_values({"a": value}).scalars["a"]
    assert scalar is not None
    assert math.isnan(scalar)


@pytest.mark.parametrize(
    ("value", "many"),
    [
        ([1, 2.5, True], [1.0, 2.5, 1.0]),
        ((1,), [1.0]),
        ([], []),
        ([[1, 2], [3]], [1.0, 2.0, 3.0]),
        ([1.0, None, INF], [1.0, INF]),
        ([10**400], [INF]),
        ([torch.tensor(1.0), np.float32(2.0)], [1.0, 2.0]),
        (np.arange(3), [0.0, 1.0, 2.0]),
        (np.array([[1.0, 2.0], [3.0, 4.0]]), [1.0, 2.0, 3.0, 4.0]),
        (np.zeros(0), []),
        (np.array([1.0, None]), [1.0]),
        (torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16), [1.0, 2.0]),
        (array("d", [1.0, 2.0]), [1.0, 2.0]),
    ],
)
def test_lists_and_arrays_are_many_values(value: Any, many: list[float]) -> None:
    result = sort_values({"a": value})
    assert result.many == {"a": many}
    assert (result.scalars, result.texts, result.skipped) == ({}, {}, {})


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "object"),
        (b"bytes", "bytes"),
        ({1, 2}, "set"),
        (1j, "complex"),
        (np.complex64(1j), "complex64"),
        (torch.tensor(1j), "Tensor"),
        (torch.zeros(3, device="meta"), "Tensor"),
        (np.datetime64("2026-01-01"), "datetime64"),
        ([1, "x"], "list"),
        ([{"a": 1}], "list"),
        (np.array(["a", "b"]), "ndarray"),
        (Loud(), "Loud"),
        (NoItems(a=1), "NoItems"),
        (Decimal("sNaN"), "Decimal"),
        (len, "builtin_function_or_method"),
    ],
)
def test_anything_else_is_skipped_by_its_type_and_costs_no_other_value(value: Any, kind: str) -> None:
    result = sort_values({"odd": value, "fine": 1.0, "nested": {"odd": value}})
    assert result.scalars == {"fine": 1.0}
    assert result.skipped == {"odd": kind, "nested/odd": kind}


def test_an_object_whose_attributes_raise_is_skipped() -> None:
    assert sort_values({"odd": NoAttributes(), "list": [NoAttributes()]}).skipped == {
        "odd": "NoAttributes",
        "list": "list",
    }


def test_texts_are_texts() -> None:
    assert sort_values({"a": "text", "b": np.str_("numpy"), "c": "\ud800"}).texts == {
        "a": "text",
        "b": "numpy",
        "c": "\\ud800",
    }


def test_nested_mappings_are_flattened_and_keys_become_texts() -> None:
    nested = {"a": {"b": {"c": 1}, 2: 3}, (1, 2): UserDict({None: 4}), Unnameable(): 5, "e": {}}
    assert sort_values(nested).scalars == {"a/b/c": 1, "a/2": 3, "(1, 2)/None": 4, "<Unnameable>": 5}


def test_mappings_inside_themselves_end() -> None:
    circle: dict[str, Any] = {"a": 1}
    circle["left"] = circle
    circle["right"] = {"again": circle, "b": 2}
    result = sort_values(circle)
    assert result.scalars == {"a": 1, "right/b": 2}
    assert set(result.skipped) == {"left", "right/again"}


def test_mappings_nested_beyond_reason_are_skipped() -> None:
    deep: dict[str, Any] = {"end": 1}
    for _ in range(5000):
        deep = {"d": deep}
    result = sort_values(deep)
    assert result.scalars == {}
    assert len(result.skipped) == 1


@pytest.mark.parametrize("metrics", [None, 3, "text", [1], NoItems(a=1)])
def test_what_is_no_mapping_is_skipped_as_a_whole(metrics: Any) -> None:
    assert sort_values(metrics).skipped == {"metrics": type(metrics).__name__}


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, np.int64(2**60 + 1), torch.tensor(2**60 + 1)])
def test_integers_beyond_what_a_float_holds_are_flagged(value: Any) -> None:
    result = sort_values({"a": value, "fine": 2**53})
    assert result.inexact == {"a": int(value)}
    assert set(result.scalars) == {"a", "fine"}


def test_inexact_integers_are_marked_once_a_key(tmp_path: Path) -> None:
    with EventWriter.open(tmp_path, run="r", capture_diff=False) as log:
        log.log_metrics({"a": 2**53 + 1}, prefix="p")
        log.log_metrics({"a": 2**53 + 3, "b": 10**5000}, prefix="p")
        log.log_metrics({"b": 2**60 + 1}, prefix="p")
    markers = raw_rows(log.path, "markers")
    assert [(row["name"], row["level"]) for row in markers] == [("inexact_integer", "warning")] * 2
    assert [json.loads(row["fields"])["key"] for row in markers] == ["p/a", "p/b"]
    assert json.loads(markers[0]["fields"])["value"] == str(2**53 + 1)
    assert [row["value"] for row in raw_rows(log.path, "metrics")] == [2.0**53, 2.0**53 + 4, INF, 2.0**60]


def test_four_different_values_stay_four_on_disk(tmp_path: Path) -> None:
    with EventWriter.open(tmp_path, run="r", capture_diff=False) as log:
        log.log_metrics({"nan": NAN, "inf": INF, "-inf": -INF, "null": None, "zero": -0.0})
        opened = raw_rows(log.path, "metrics")
    for rows in (opened, raw_rows(log.path, "metrics")):
        values = {row["name"]: row["value"] for row in rows}
        assert math.isnan(values.pop("nan"))
        assert math.copysign(1, values["zero"]) == -1
        assert values == {"inf": INF, "-inf": -INF, "null": None, "zero": 0.0}


def test_skipped_values_are_counted_each_time_and_named_once_a_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventWriter.open(tmp_path, run="r", capture_diff=False)
    for _ in range(5):
        log.log_metrics({"odd": object(), "other": object()})
    assert log.close().counters == {"values skipped": 10}
    assert [record.getMessage() for record in caplog.records if "odd" in record.getMessage()] == [
        "rl-eventlog skips 'odd' (values skipped): object"
    ]


@pytest.mark.parametrize(
    ("step", "whole"),
    [
        (3, 3),
        (3.0, 3),
        (np.int64(3), 3),
        (torch.tensor(3), 3),
        (True, 1),
        (2**63 - 1, 2**63 - 1),
        (2**63, None),
        (3.5, None),
        ("3", None),
        (NAN, None),
        (torch.tensor([1, 2]), None),
        (Loud(), None),
    ],
)
def test_steps_are_whole_numbers_of_64_bits(step: Any, whole: int | None) -> None:
    assert step_of(step) == whole


def test_lookup_prefers_the_exact_name_to_a_glob() -> None:
    declared = {"*": "last", "a*": "min", "ab": "sum", "p/ac": "max", 3: "mean"}
    assert lookup(declared, "ab", "p/ab") == "sum"
    assert lookup(declared, "ac", "p/ac") == "max"
    assert lookup(declared, "zz", "p/zz") == "last"
    assert lookup({"a*": "min"}, "b", "p/b") is None
    assert lookup("sum", "b", "p/b") == "sum"
    assert lookup(None, "b", "p/b") is None


def test_numbers_refuses_what_is_none() -> None:
    odd: list[Any] = ["text", [b"x"], object()]
    for value in odd:
        with pytest.raises(TypeError):
            numbers(value)


hostile = st.builds(NoAttributes) | st.builds(NoItems) | st.sampled_from([Loud(), object(), len, {1}, 1j, b"\xff"])
surrogates = st.text(st.characters(exclude_categories=[]), max_size=8)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True, allow_infinity=True)
    | surrogates
    | hostile
    | st.decimals()
    | st.builds(np.float32, st.floats(width=32))
    | st.builds(torch.tensor, st.floats(width=32))
    | st.builds(np.array, st.lists(st.floats(), max_size=3))
)
keys = surrogates | st.integers() | st.none() | st.tuples(st.integers()) | st.builds(Unnameable)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3) | st.tuples(inner),
    max_leaves=12,
)


def test_no_value_whatever_raises_into_the_loop(tmp_path: Path) -> None:
    log = EventWriter.open(tmp_path, run="r", capture_diff=False)

    @given(metrics=st.dictionaries(keys, values, max_size=5) | values, prefix=surrogates, step=leaves, weight=values)
    @settings(max_examples=200)
    def log_it(metrics: Any, prefix: str, step: Any, weight: Any) -> None:
        log.log_metrics(metrics, step, prefix, weight=weight)
        log.accumulate(metrics, weight=weight)
        log.log_hyperparams(metrics)
        log.log_histogram(metrics, step, prefix)
        log.log_samples(metrics, step, split=prefix)
        log.log_samples([metrics], step)
        log.mark(prefix, step=step, field=metrics)
        log.log_timing(prefix, weight, step, start=weight)
        log.log_gpu_samples([metrics])

    log_it()
    assert log.close(60.0).ok


def test_every_float_arrives_bit_for_bit(tmp_path: Path) -> None:
    log = EventWriter.open(tmp_path, run="r", capture_diff=False)
    logged: list[tuple[str, bytes | None]] = []

    @given(st.dictionaries(st.text("abcdef/", min_size=1, max_size=6), st.floats() | st.none(), max_size=40))
    @settings(max_examples=60)
    def log_it(metrics: dict[str, float | None]) -> None:
        log.log_metrics(metrics)
        logged.extend((name, bits(value)) for name, value in metrics.items())

    log_it()
    for _ in ("open", "sealed"):
        assert [(row["name"], bits(row["value"])) for row in raw_rows(log.path, "metrics")] == logged
        log.close()
    assert len(logged) > 100


@given(values)
def test_json_is_made_of_anything(value: Any) -> None:
    text = to_json(value)
    assert to_json(json.loads(text.encode())) == text  # valid UTF-8, valid JSON, and the same when read back


def test_json_keeps_what_json_knows() -> None:
    circle: list[Any] = []
    circle += [circle, circle]
    assert json.loads(to_json({"a": [1, "é", None, True, 0.1]})) == {"a": [1, "é", None, True, 0.1]}
    assert json.loads(to_json([NAN, INF, -INF])) == ["NaN", "Infinity", "-Infinity"]
    assert json.loads(to_json({(1, 2): np.arange(2), "t": torch.zeros(1)})) == {"(1, 2)": [0, 1], "t": [0.0]}
    assert json.loads(to_json(circle)) == ["<list>", "<list>"]
    assert json.loads(to_json("\ud800")) == "\ud800"
    assert json.loads(to_json(10**5000)) == "<int>"


def test_the_text_of_anything_is_utf8() -> None:
    assert text_of("é") == "é"
    assert text_of("a\ud800b") == "a\\ud800b"
    assert text_of(Unnameable()) == "<Unnameable>"
    assert text_of(3) == "3"
