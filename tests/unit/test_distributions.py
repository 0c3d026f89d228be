from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rl_eventlog.types import MAX_BINS
from rl_eventlog.writer.distributions import GAMMA, given_histogram, sketch

NAN, INF = float("nan"), float("inf")


def quantile(row: dict[str, Any], q: float) -> float:
    """Read a quantile from the bins: the value of the bin that holds the item of that rank."""
    gamma: float = row["gamma"]
    bins: list[tuple[float, int]] = [
        (-2 * gamma**index / (gamma + 1), count)
        for index, count in zip(row["negative_bin_index"], row["negative_bin_count"], strict=True)
    ][::-1]
    bins.append((0.0, row["zero_count"]))
    bins += [
        (2 * gamma**index / (gamma + 1), count) for index, count in zip(row["bin_index"], row["bin_count"], strict=True)
    ]
    rank, passed = q * (sum(count for _, count in bins) - 1), 0
    for value, count in bins:
        passed += count
        if passed > rank:
            return value
    raise AssertionError(f"no bin at {q}")


GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize(
    "values",
    [
        GENERATOR.normal(size=5000),
        GENERATOR.lognormal(sigma=4, size=5000),
        -GENERATOR.exponential(size=5000),
        GENERATOR.integers(-5, 5, size=5000).astype(float),
        np.geomspace(1e-9, 1e7, 1801),
        np.array([3.0]),
    ],
    ids=["normal", "lognormal", "negative", "integers", "decades", "one"],
)
def test_quantiles_from_the_bins_are_within_one_percent_of_numpys(values: npt.NDArray[np.float64]) -> None:
    row = sketch(values.tolist())
    for q in (0.0, 0.01, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0):
        true = float(np.quantile(values, q, method="lower"))
        assert quantile(row, q) == pytest.approx(true, rel=0.01 + 1e-9, abs=1e-12), q


def test_moments_are_numpys() -> None:
    values = GENERATOR.normal(3, 2, size=1000)
    row = sketch(values.tolist())
    assert row["count"] == 1000
    assert row["sum"] == pytest.approx(values.sum())
    assert row["m2"] == pytest.approx(((values - values.mean()) ** 2).sum())
    assert (row["min"], row["max"]) == (values.min(), values.max())


def test_every_finite_value_is_in_one_bin_and_bins_are_as_specified() -> None:
    values = [1.0, 2.0, 2.0, -3.0, 0.0, -0.0, 5e-324, 1.7e308]
    row = sketch(values)
    assert row["zero_count"] == 2
    assert sum(row["bin_count"]) == 5
    assert sum(row["negative_bin_count"]) == 1
    assert row["bin_index"] == sorted(row["bin_index"])
    assert row["gamma"] == GAMMA == pytest.approx(1.02020202)
    assert row["bin_count"][row["bin_index"].index(math.ceil(math.log(2) / math.log(GAMMA)))] == 2
    for index in row["negative_bin_index"]:
        assert GAMMA ** (index - 1) < 3.0 <= GAMMA**index


@pytest.mark.parametrize(
    ("values", "lowest", "highest"),
    [([1.0, NAN], NAN, NAN), ([1.0, INF], 1.0, INF), ([-INF, 1.0, INF], -INF, INF), ([NAN], NAN, NAN)],
)
def test_values_that_are_not_finite_count_and_are_in_no_bin(values: list[float], lowest: float, highest: float) -> None:
    row = sketch(values)
    assert row["count"] == len(values)
    np.testing.assert_equal([row["min"], row["max"]], [lowest, highest])
    np.testing.assert_equal(row["sum"], sum(values))
    assert sum(row["bin_count"]) == sum(math.isfinite(value) for value in values)


def test_no_values_are_a_count_of_none() -> None:
    row = sketch([])
    assert (row["count"], row["zero_count"], row["bin_index"]) == (0, 0, [])
    assert "min" not in row


def test_beyond_the_limit_the_lowest_bins_collapse_and_no_value_is_lost() -> None:
    values = np.geomspace(1e-300, 1e300, 60_000)
    row = sketch(values.tolist())
    assert len(row["bin_index"]) == MAX_BINS
    assert sum(row["bin_count"]) == 60_000
    assert quantile(row, 0.99) == pytest.approx(float(np.quantile(values, 0.99, method="lower")), rel=0.011)


def test_a_given_histogram_keeps_its_edges() -> None:
    counts, edges = np.histogram([1.0, 2.0, 2.5, 9.0], bins=4)
    row = given_histogram(counts, edges)
    assert (row["count"], row["edge_counts"], row["edges"]) == (4, counts.tolist(), edges.tolist())


@pytest.mark.parametrize(
    ("counts", "edges", "reason"),
    [
        ([1, 2], [0.0, 1.0], "2 counts need 3 rising edges, got 2"),
        ([1, 2], [0.0, 1.0, 1.0], "rising"),
        ([1], [0.0, NAN], "rising"),
        ([0.5], [0.0, 1.0], "not densities"),
        ([-1], [0.0, 1.0], "whole numbers"),
        ([NAN], [0.0, 1.0], "whole numbers"),
        ([2**70], [0.0, 1.0], "whole numbers"),
    ],
)
def test_histograms_that_are_none_are_refused(counts: list[float], edges: list[float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        given_histogram(counts, edges)
