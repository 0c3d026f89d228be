"""Any values, split over ranks in any way: the merged distribution is that of one rank with all of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from rl_eventlog import reduce
from rl_eventlog.writer.distributions import sketch
from tests.support.rows import Writer, identities_of, rows_of

BINS = ("bin_index", "bin_count", "negative_bin_index", "negative_bin_count", "zero_count", "gamma")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}

VALUES = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-1e3, 1e3, allow_subnormal=False),
    st.floats(-1e150, 1e150, allow_subnormal=False),
)
SPLITS = st.lists(st.lists(VALUES, max_size=12), min_size=1, max_size=6)
SPECIAL = st.sampled_from([math.nan, math.inf, -math.inf])


def merge(parts: list[list[float]], order: list[int] | None = None) -> dict[str, Any]:
    """The merged row; `order` is that of the rows in their files."""
    writers = [Writer(f"w{rank}", rank=rank) for rank in range(len(parts))]
    logged = [(writer, {"name": "d", "step": 0, **sketch(part)}) for writer, part in zip(writers, parts, strict=True)]
    rows = rows_of("distributions", logged)
    rows = rows if order is None else rows[order]
    identities = identities_of(writers)
    lazy = reduce.with_position(reduce.identify(rows.lazy(), identities))
    view = reduce.select_view(lazy, identities, by=("name", "axis", "position"))
    return reduce.merge_distributions(view).collect().row(0, named=True)


@given(parts=SPLITS)
@settings(max_examples=80)
def test_merged_splits_are_one_row_of_all_values(parts: list[list[float]]) -> None:
    values = [value for part in parts for value in part]
    found, whole = merge(parts), merge([values])
    assert {name: found[name] for name in BINS} == {name: whole[name] for name in BINS}
    assert [found[name] for name in ("count", "min", "max")] == [whole[name] for name in ("count", "min", "max")]
    if values:
        size = max(map(abs, values))
        assert found["mean"] == pytest.approx(np.mean(values), rel=1e-12, abs=1e-13 * size)
        assert found["std"] == pytest.approx(np.std(values), rel=1e-9, abs=1e-12 * size)


@given(parts=SPLITS)
@settings(max_examples=80)
def test_quantiles_are_within_one_percent_of_the_values_they_lie_between(parts: list[list[float]]) -> None:
    values = [value for part in parts for value in part]
    found = merge(parts)
    for name, q in QUANTILES.items():
        if not values:
            assert found[name] is None
            continue
        low, high = (float(np.quantile(values, q, method=method)) for method in ("lower", "higher"))
        largest = max(abs(low), abs(high)) if low * high <= 0 else 0.0
        assert found[name] == pytest.approx(np.quantile(values, q), rel=0.01 + 1e-9, abs=0.0101 * largest), name


@given(parts=SPLITS, data=st.data(), special=st.lists(SPECIAL, max_size=3))
@settings(max_examples=30)
def test_rows_in_any_order_give_the_same_digits(
    parts: list[list[float]], data: st.DataObject, special: list[float]
) -> None:
    parts = [*parts, special]
    order = data.draw(st.permutations(range(len(parts))))
    found, first = (pl.DataFrame([merge(parts, rows)], infer_schema_length=None) for rows in (order, None))
    assert found.equals(first)
