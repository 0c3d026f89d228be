"""Random moments of a training: merged online they are what reading the log gives, and what the oracle says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rl_eventlog import EventWriter, Run, merge_ranks, reduce_across_ranks
from rl_eventlog.errors import OptionError
from rl_eventlog.value_types import Mean, Quantiles, Sum
from tests.support.gloo_rank import GlooRanks
from tests.support.online_cases import NUMBERS, Case, assert_same, cases, same_digits

RANKS = 4
Call = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlooRanks]:
    ranks = GlooRanks(RANKS, tmp_path_factory.mktemp("gloo") / "store")
    yield ranks
    ranks.close()


def merged(case: Case) -> dict[str, float | None]:
    return merge_ranks(case.per_rank, reduce=case.reduce, weight=case.weight, data_ranks=case.data_ranks)


def calls(case: Case) -> list[Call]:
    options = {"reduce": case.reduce, "weight": case.weight}
    return [
        (metrics, {**options, "data_rank": data_rank})
        for metrics, data_rank in zip(case.per_rank, case.data_ranks, strict=True)
    ]


@given(case=cases())
@settings(max_examples=300)
def test_merged_dicts_agree_with_the_oracle(case: Case) -> None:
    assert_same(merged(case), case.expected(), rel=1e-9)


@given(case=cases(ranks=RANKS))
@settings(max_examples=100)
def test_real_ranks_get_the_digits_of_the_merged_dicts(gloo: GlooRanks, case: Case) -> None:
    for result, _ in gloo.reduce(calls(case)):
        assert same_digits(result, merged(case))


@given(case=cases(ranks=RANKS // 2))
@settings(max_examples=40)
def test_a_data_parallel_group_counts_tensor_parallel_ranks_once(gloo: GlooRanks, case: Case) -> None:
    doubled = [call for call in calls(case) for _ in range(2)]  # ranks 0 and 1 hold the same, and so do 2 and 3
    for result, _ in gloo.reduce(doubled, group="data"):
        assert same_digits(result, merged(case))


@given(lists=st.lists(st.none() | st.lists(NUMBERS, max_size=9), min_size=RANKS, max_size=RANKS))
@settings(max_examples=60)
def test_quantiles_are_numpys_over_the_values_of_all_ranks(gloo: GlooRanks, lists: list[list[float] | None]) -> None:
    per_rank = [{} if given is None else {"len": Quantiles(given)} for given in lists]
    every = np.array([value for given in lists for value in given or []], dtype=float)
    expected = merge_ranks(per_rank)
    if np.isfinite(every).all() and len(every):
        quantiles = {f"len/p{q}": float(np.quantile(every, q / 100)) for q in (50, 90, 95, 99)}
        assert_same(expected, quantiles, rel=1e-9)
    assert expected.keys() == ({f"len/p{q}" for q in (50, 90, 95, 99)} if any(per_rank) else set())
    for result, _ in gloo.reduce([(metrics, {}) for metrics in per_rank]):
        assert same_digits(result, expected)


@given(moments=st.lists(cases(ranks=RANKS), min_size=12, max_size=12))
@settings(max_examples=3)
def test_what_is_merged_online_is_what_is_read_later(moments: list[Case]) -> None:
    data_ranks = moments[0].data_ranks  # a writer has one
    with TemporaryDirectory() as root:
        for rank, data_rank in enumerate(data_ranks):
            options: dict[str, Any] = {
                "role": "trainer",
                "rank": rank,
                "world_size": RANKS,
                "data_rank": data_rank,
                "launch_id": "l",
            }
            with EventWriter.open(root, run="r", capture_diff=False, **options) as log:
                for number, case in enumerate(moments):
                    rows = {key: case.row(rank, key) for key in case.per_rank[rank]}
                    log.log_metrics(
                        {key: row["value"] for key, row in rows.items()},
                        step=7,
                        prefix=f"case-{number}",
                        weight={key: row["weight"] for key, row in rows.items()},
                        reduce={key: row["reduction"] for key, row in rows.items()},
                    )
        read = {row["name"]: row["value"] for row in Run(Path(root) / "r").metrics().collect().to_dicts()}
    for number, case in enumerate(moments):
        online = merge_ranks(case.per_rank, reduce=case.reduce, weight=case.weight, data_ranks=data_ranks)
        here = f"case-{number}/"
        assert_same(online, {name.removeprefix(here): read[name] for name in read if name.startswith(here)}, 1e-12)


def test_a_call_is_one_collective_once_every_rank_had_its_keys(gloo: GlooRanks) -> None:
    # under names that no other test has
    first: list[Call] = [({"once": Mean(rank, weight=rank)}, {}) for rank in range(RANKS)]
    with_more = [*first[:3], ({"once": Mean(1.0), "once-more": Sum(1), "once-long": [1.0] * 100}, {})]
    assert [taken for _, taken in gloo.reduce(first)] == [3] * RANKS
    assert [taken for _, taken in gloo.reduce(first)] == [1] * RANKS
    assert [taken for _, taken in gloo.reduce(with_more)] == [3] * RANKS
    for again in (first, with_more, first):
        assert [taken for _, taken in gloo.reduce(again)] == [1] * RANKS
    shorter: list[Call] = [({"once-long": [2.0] * length}, {}) for length in (90, 0, 0, 100)]
    assert [taken for _, taken in gloo.reduce(shorter)] == [3] * RANKS  # the lists of ranks 0 to 2 are new


def test_keys_without_end_do_not_grow_what_is_sent_for_ever(gloo: GlooRanks) -> None:
    for block in range(4):
        metrics = {f"step-{block}-{number}": 1.0 for number in range(1500)}
        results = gloo.reduce([(metrics, {"reduce": "sum"})] * RANKS)
        assert [result for result, _ in results] == [dict.fromkeys(metrics, 4.0)] * RANKS


def test_without_a_process_group_the_values_are_those_of_one_rank() -> None:
    import torch

    metrics = {"loss": torch.tensor(2.0), "tokens": Sum(3), "name": "no number", "nested": {"x": np.float32(0.5)}}
    expected = {"loss": 2.0, "tokens": 3.0, "nested/x": 0.5}
    assert reduce_across_ranks(metrics, weight={"loss": 4}, data_rank=0) == expected


def test_no_value_makes_merging_raise() -> None:
    inside: dict[str, Any] = {"a": 1}
    inside["self"] = inside
    odd = {"text": "x", "object": object(), "none": None, "words": ["x"], "big": 10**400, "bad": Mean("x")}
    assert merge_ranks([inside, odd, {"a": Mean(3, weight="x")}]) == {
        "a": 2.0,
        "none": None,
        "big": math.inf,
    }


def test_a_data_rank_for_each_rank_or_an_error() -> None:
    with pytest.raises(OptionError, match="data_ranks: 1 of 2 ranks"):
        merge_ranks([{}, {}], data_ranks=[0])
