"""Merging distributions: bins as one rank with all values would have them, quantiles within 1% of numpy's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from ddsketch import DDSketch

from rl_eventlog import EventWriter, Quantiles, Run, Runs, maintain, reduce
from rl_eventlog.types import MAX_BINS
from rl_eventlog.writer.distributions import GAMMA, RELATIVE_ERROR, given_histogram, sketch
from tests.support.rows import Writer, at, identities_of, rows_of

NAN, INF = math.nan, math.inf
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
BINS = ("bin_index", "bin_count", "negative_bin_index", "negative_bin_count", "zero_count", "gamma")
Values = npt.NDArray[np.float64]
Logged = Sequence[tuple[Writer, dict[str, Any]]]


def row(values: Any, **more: Any) -> dict[str, Any]:
    return {"name": "d", "step": 1, **sketch(values), **more}


def ranks(*values: Any) -> Logged:
    return [(Writer(f"w{rank}", rank=rank), row(some)) for rank, some in enumerate(values)]


def view(logged: Logged, **options: Any) -> pl.LazyFrame:
    identities = identities_of({writer.writer: writer for writer, _ in logged}.values())
    rows = reduce.with_position(reduce.identify(rows_of("distributions", logged).lazy(), identities))
    return reduce.select_view(rows, identities, by=("name", "axis", "position"), **options)


def merged(logged: Logged, **options: Any) -> list[dict[str, Any]]:
    frame = reduce.merge_distributions(view(logged, **options)).collect()
    return frame.sort("role", "name", "axis", "position", "attempt").to_dicts()


def warnings_of(logged: Logged) -> list[tuple[str, ...]]:
    return reduce.distribution_warnings(view(logged)).collect().rows()


GENERATOR = np.random.default_rng(7)
SHAPES = {
    "lognormal": GENERATOR.lognormal(sigma=2, size=4001),
    "uniform": GENERATOR.uniform(3, 9, size=4001),
    "constant": np.full(4001, 0.1),
    "mixed_sign": np.concatenate([GENERATOR.normal(size=3000), GENERATOR.normal(50, size=1001)]),
    "pareto": GENERATOR.pareto(0.8, size=4001),
    "cauchy": GENERATOR.standard_cauchy(size=4001),
    "negative": -GENERATOR.exponential(size=4001),
    "zeros": np.concatenate([np.zeros(2500), GENERATOR.exponential(size=1501)]),
}
shapes = pytest.mark.parametrize("values", SHAPES.values(), ids=SHAPES.keys())


def uneven(values: Values) -> list[Values]:
    """Over eight ranks: the first has one value, one has none."""
    mixed = np.random.default_rng(3).permutation(values)
    return np.split(mixed, [1, 5, 5, 40, 300, 900, 2000])


@shapes
def test_quantiles_over_uneven_ranks_are_within_one_percent_of_numpys(values: Values) -> None:
    (found,) = merged(ranks(*uneven(values)))
    for name, q in QUANTILES.items():
        assert found[name] == pytest.approx(np.quantile(values, q), rel=RELATIVE_ERROR, abs=1e-12), name


@shapes
def test_count_and_moments_are_numpys(values: Values) -> None:
    (found,) = merged(ranks(*uneven(values)))
    assert (found["count"], found["ranks"]) == (4001, 8)
    assert (found["min"], found["max"]) == (values.min(), values.max())
    assert found["sum"] == pytest.approx(values.sum(), rel=1e-12)
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-12)
    assert found["std"] == pytest.approx(values.std(), rel=1e-12, abs=1e-15)


@shapes
def test_merged_bins_are_those_of_one_rank_with_all_values(values: Values) -> None:
    (found,) = merged(ranks(*uneven(values)))
    whole = sketch(values)
    assert {name: found[name] for name in BINS} == {name: whole[name] for name in BINS}


def peer_sketch(values: Values) -> DDSketch:
    peer = DDSketch(RELATIVE_ERROR)
    for value in values.tolist():
        peer.add(value)
    return peer


def peer_bins(store: Any) -> dict[int, int]:
    return {index + store.offset: int(count) for index, count in enumerate(store.bins) if count}


@shapes
def test_bins_and_merged_quantiles_are_those_of_the_ddsketch_package(values: Values) -> None:
    parts = np.split(np.random.default_rng(3).permutation(values), [40, 40, 300, 900, 2000])
    whole = peer_sketch(values[:0])
    for part in parts:
        ours, peer = sketch(part), peer_sketch(part)
        assert dict(zip(ours["bin_index"], ours["bin_count"], strict=True)) == peer_bins(peer._store)
        negative = zip(ours["negative_bin_index"], ours["negative_bin_count"], strict=True)
        assert dict(negative) == peer_bins(peer._negative_store)
        assert ours["zero_count"] == peer._zero_count
        assert ours["gamma"] == pytest.approx(peer._mapping.gamma, rel=1e-15)
        whole.merge(peer)
    (found,) = merged(ranks(*parts))
    assert found["count"] == whole.count
    # of 4,001 values no quantile lies between two; the package knows nothing of values that are exact
    close = RELATIVE_ERROR if found["min"] == found["max"] else 1e-12
    for name, q in QUANTILES.items():
        assert found[name] == pytest.approx(whole.get_quantile_value(q), rel=close), name


@pytest.mark.parametrize("values", [[2.0], [0.0], [-3.0], [1.001, 3.0], [0.1] * 7, [INF], [-5e-324]], ids=str)
def test_lowest_highest_and_equal_values_are_exact(values: list[float]) -> None:
    (found,) = merged(ranks(values))
    expected = [values[0] if len(set(values)) == 1 else np.quantile(values, q) for q in QUANTILES.values()]
    assert [found[name] for name in QUANTILES] == pytest.approx(expected, rel=1e-15, abs=0)


def test_quantiles_lie_between_the_lowest_and_the_highest_value() -> None:
    (found,) = merged(ranks(np.linspace(1.0001, 1.0005, 11), np.linspace(1.0001, 1.0005, 7)))
    assert all(1.0001 <= found[name] <= 1.0005 for name in QUANTILES)


def test_one_value_a_rank_gives_exact_quantiles() -> None:
    values = GENERATOR.normal(size=33)
    (found,) = merged(ranks(*[[value] for value in values]))
    assert [found[name] for name in QUANTILES] == pytest.approx(
        np.quantile(values, list(QUANTILES.values())), rel=1e-14
    )


def test_a_nan_of_one_rank_makes_all_but_the_counts_nan() -> None:
    (found,) = merged(ranks([1.0, 2.0], [3.0, NAN]))
    assert found["count"] == 4
    assert all(math.isnan(found[name]) for name in ("sum", "mean", "std", "min", "max", *QUANTILES))
    assert sum(found["bin_count"]) == 3


def test_infinities_are_the_lowest_and_the_highest_values() -> None:
    (found,) = merged(ranks([1.0, 2.0, 3.0, INF], [-INF, 4.0, INF], [-INF] * 2))
    assert (found["count"], found["min"], found["max"]) == (9, -INF, INF)
    assert found["p50"] == pytest.approx(2.0, rel=0.01)
    assert (found["p90"], found["p99"]) == (INF, INF)
    assert math.isnan(found["mean"])
    (unknown,) = merged(ranks([-INF, INF, INF, 1.0]))
    assert math.isnan(unknown["p50"])


def test_rows_of_no_values_change_nothing_and_alone_give_null() -> None:
    (found,) = merged(ranks([], [1.0, 2.0], []))
    (alone,) = merged(ranks([1.0, 2.0]))
    assert {**found, "ranks": 1, "time": None} == {**alone, "time": None}
    (empty,) = merged(ranks([], []))
    assert (empty["count"], empty["ranks"], empty["bin_index"], empty["zero_count"]) == (0, 2, [], 0)
    assert {empty[name] for name in ("sum", "mean", "std", "min", "max", *QUANTILES)} == {None}


def test_beyond_the_limit_the_lowest_merged_bins_are_one() -> None:
    low, high = np.geomspace(1e-300, 1e-3, 40_000), np.geomspace(1e-2, 1e300, 40_000)
    (found,) = merged(ranks(low, -high, high, -low))
    whole = sketch(np.concatenate([low, high, -low, -high]))
    assert len(found["bin_index"]) == len(found["negative_bin_index"]) == MAX_BINS
    assert {name: found[name] for name in BINS} == {name: whole[name] for name in BINS}
    assert found["p99"] == pytest.approx(np.quantile(np.concatenate([low, high, -low, -high]), 0.99), rel=0.011)


def test_a_replica_counts_once_with_its_lowest_rank_that_has_values() -> None:
    logged = [
        (Writer(f"w{rank}", rank=rank, data_rank=rank // 2), row(values))
        for rank, values in enumerate([[], [1.0, 2.0], [5.0], [7.0]])
    ]
    (found,) = merged(logged)
    assert (found["count"], found["sum"], found["max"], found["ranks"]) == (3, 8.0, 5.0, 4)
    assert warnings_of(logged) == [
        ("replicas_differ", "trainer", "d", "ranks of one data_rank differ at 1 positions; the lowest rank counts")
    ]


def test_rows_with_other_bins_than_the_lowest_rank_are_left_out_and_reported() -> None:
    other = row([10.0, 20.0], gamma=1.5)
    logged = [(Writer("w0", rank=0), row([], gamma=3.0)), (Writer("w2", rank=2), other), *ranks([], [1.0, 2.0])[1:]]
    (found,) = merged(logged)
    assert (found["count"], found["max"], found["gamma"], found["ranks"]) == (2, 2.0, GAMMA, 3)
    assert warnings_of(logged) == [
        ("bins_differ", "trainer", "d", "1 rows whose bins differ from the lowest rank's are left out")
    ]


def test_given_histograms_are_added_up_where_their_edges_agree() -> None:
    logged = [
        (Writer(f"w{rank}", rank=rank), {"name": "h", "step": 1, **given_histogram(counts, edges)})
        for rank, (counts, edges) in enumerate([([1, 2], [0, 1, 2]), ([10, 0], [0, 1, 2]), ([5, 5], [0, 1, 3])])
    ]
    logged.append((Writer("w3", rank=3), row([1.0], name="h")))
    (found,) = merged(logged)
    assert (found["count"], found["edges"], found["edge_counts"], found["ranks"]) == (13, [0.0, 1.0, 2.0], [11, 2], 4)
    assert {found[name] for name in ("sum", "mean", "min", "max", "p50", "p99", "bin_index", "gamma")} == {None}
    assert warnings_of(logged)[0][3].startswith("2 rows")


def test_points_are_kept_apart_by_series_axis_position_and_attempt() -> None:
    writer, later = Writer("w0"), Writer("w1", attempt=2)
    logged = [
        (writer, row([1.0])),
        (writer, row([2.0], step=2)),
        (writer, row([3.0], name="other")),
        (writer, row([4.0], axis="tokens", axis_value=1.0)),
        (writer, row([5.0], step=None)),
        (later, row([6.0])),
    ]
    found = [(r["name"], r["axis"], r["position"], r["attempt"], r["sum"]) for r in merged(logged)]
    assert found == [
        ("d", None, None, 1, 5.0),
        ("d", None, 1.0, 2, 6.0),
        ("d", None, 2.0, 1, 2.0),
        ("d", "tokens", 1.0, 1, 4.0),
        ("other", None, 1.0, 1, 3.0),
    ]
    assert len(merged(logged, attempts="all")) == 6


def test_the_columns_are_as_documented() -> None:
    frame = reduce.merge_distributions(
        view([(Writer("w0"), row([1.0], time=at(9))), *ranks([1.0], [2.0])[1:]])
    ).collect()
    numbers = dict.fromkeys(("sum", "mean", "std", "min", "max", *QUANTILES), pl.Float64)
    assert dict(frame.schema) == {
        "role": pl.String,
        "name": pl.String,
        "axis": pl.String,
        "step": pl.Int64,
        "position": pl.Float64,
        "time": pl.Datetime("us", "UTC"),
        "count": pl.Int64,
        **numbers,
        "ranks": pl.Int32,
        "attempt": pl.Int32,
        "bin_index": pl.List(pl.Int32),
        "bin_count": pl.List(pl.Int64),
        "negative_bin_index": pl.List(pl.Int32),
        "negative_bin_count": pl.List(pl.Int64),
        "zero_count": pl.Int64,
        "gamma": pl.Float64,
        "edges": pl.List(pl.Float64),
        "edge_counts": pl.List(pl.Int64),
    }
    assert frame["time"].item() == at(9)


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_no_rows_are_no_points_and_no_warnings(engine: Any) -> None:
    assert reduce.merge_distributions(view([])).collect(engine=engine).height == 0
    assert reduce.distribution_warnings(view([])).collect(engine=engine).height == 0


def test_rows_in_any_order_give_the_same_digits() -> None:
    logged = ranks(*np.array_split(SHAPES["cauchy"], 16))
    rows = rows_of("distributions", logged)
    identities = identities_of([writer for writer, _ in logged])

    def answer(rows: pl.DataFrame, engine: Any) -> pl.DataFrame:
        lazy = reduce.with_position(reduce.identify(rows.lazy(), identities))
        chosen = reduce.select_view(lazy, identities, by=("name", "axis", "position"))
        return reduce.merge_distributions(chosen).collect(engine=engine)

    first = answer(rows, "in-memory")
    for seed in range(5):
        assert answer(rows.sample(fraction=1, shuffle=True, seed=seed), "in-memory").equals(first)
    assert answer(rows.reverse(), "streaming").equals(first)


def test_histograms_of_several_ranks_are_read_with_their_quantiles(tmp_path: Path) -> None:
    lengths = [GENERATOR.lognormal(5, size=200 * (rank + 1)) for rank in range(3)]
    for rank, mine in enumerate(lengths):
        with EventWriter.open(tmp_path, run="r", rank=rank, world_size=3, launch_id="one") as log:
            log.log_metrics({"len": mine, "time": float(rank)}, step=1, prefix="gen", reduce={"time": "histogram"})
            for part in np.array_split(mine, 4):
                log.accumulate({"acc": Quantiles(part), "one": Quantiles(float(part[0]))})
            log.log_accumulated(1)
    run, everything = Run(tmp_path / "r"), np.concatenate(lengths)
    rows = {found["name"]: found for found in run.distributions().collect().to_dicts()}
    assert {name: (found["count"], found["ranks"]) for name, found in rows.items()} == {
        "acc": (1200, 3),
        "gen/len": (1200, 3),
        "gen/time": (3, 3),
        "one": (12, 3),
    }
    for name, q in QUANTILES.items():
        assert rows["gen/len"][name] == pytest.approx(np.quantile(everything, q), rel=0.01)
        assert rows["acc"][name] == pytest.approx(np.quantile(everything, q), rel=0.01)
        assert rows["gen/time"][name] == pytest.approx(np.quantile([0, 1, 2], q))
    assert run.metrics().collect().height == 0
    assert run.distributions("gen/*", ranks="each").select("rank", "count").sort("rank", "count").collect().rows() == [
        *((0, 1), (0, 200)),
        *((1, 1), (1, 400)),
        *((2, 1), (2, 600)),
    ]
    assert Runs(tmp_path).distributions("acc").select("run", "count").collect().rows() == [("r", 1200)]
    before = run.distributions().collect()
    maintain.compact(run.path)
    assert run.refresh().distributions().collect().equals(before)
    with pytest.raises(ValueError, match="'reduced', 'each'"):
        run.distributions(ranks="all")  # type: ignore[arg-type]


def test_a_run_warns_of_distributions_that_are_left_out(tmp_path: Path) -> None:
    for rank, edges in enumerate([[0.0, 1.0, 2.0], [0.0, 1.0, 3.0]]):
        with EventWriter.open(tmp_path, run="r", rank=rank, world_size=2, launch_id="one") as log:
            log.log_histogram(([1, 2], edges), 1, "h")
    assert Run(tmp_path / "r").warnings().rows() == [
        ("bins_differ", "main", "h", "1 rows whose bins differ from the lowest rank's are left out")
    ]
