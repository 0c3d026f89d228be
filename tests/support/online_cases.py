"""What ranks hand over at one moment, drawn by Hypothesis, and what the oracle says of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from rl_eventlog.types import REDUCTIONS
from rl_eventlog.value_types import Last, Max, Mean, Min, Sum
from tests.support import reduce_oracle as oracle
from tests.support.rows import at

NUMBERS = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-300, 1e200]),
    st.integers(-8, 8),
    st.floats(-1e6, 1e6),
)
WEIGHTS = st.sampled_from([0.0, 0.5, 1.0, 7.0, -1.0, math.nan, math.inf])
KEYS = ("a", "b", "train/c", "len_0", "len_1")


@dataclass(frozen=True)
class Case:
    """One moment."""

    per_rank: list[dict[str, Any]]
    reduce: dict[str, str]
    weight: dict[str, float]
    data_ranks: list[int | None]

    def row(self, rank: int, key: str) -> dict[str, Any]:
        """Value, weight and reduction as the log has them."""
        given = self.per_rank[rank][key]
        typed = isinstance(given, (Mean, Sum, Max, Min, Last))
        return {
            "value": given.value if typed else given,
            "weight": given.weight if isinstance(given, Mean) else self.weight.get(key),
            "reduction": given.reduction if typed else self.reduce.get(key),
        }

    def expected(self) -> dict[str, float | None]:
        """What the oracle merges."""
        rows = [self._oracle_row(rank, key) for rank, metrics in enumerate(self.per_rank) for key in metrics]
        return {row["name"]: row["value"] for row in oracle.merge_metrics(rows)}

    def _oracle_row(self, rank: int, key: str) -> dict[str, Any]:
        row = self.row(rank, key)
        place = {"role": "trainer", "name": key, "axis": None, "step": 0, "position": 0.0, "attempt": 1, "time": at(0)}
        who = {"rank": rank, "rank_key": f"rank {rank}", "data_rank": self.data_ranks[rank], "writer": "w", "seq": 0}
        value = None if row["value"] is None else float(row["value"])
        return {**place, **who, **row, "incarnation": 0, "value": value}


@st.composite
def values(draw: st.DrawFn) -> Any:
    number = draw(st.none() | NUMBERS)
    kind = draw(st.sampled_from([None, None, None, Mean, Sum, Max, Min, Last]))
    if kind is Mean:
        return Mean(number, weight=draw(WEIGHTS))
    return number if kind is None else kind(number)


@st.composite
def cases(draw: st.DrawFn, ranks: int | None = None) -> Case:
    """Ranks with some keys each, of which some are replicas."""
    count = draw(st.integers(1, 5)) if ranks is None else ranks
    replicas = draw(st.sampled_from([None, 1, 2, 3]))
    declared = st.sampled_from([*REDUCTIONS, "median"])
    return Case(
        [draw(st.dictionaries(st.sampled_from(KEYS), values(), max_size=len(KEYS))) for _ in range(count)],
        draw(st.dictionaries(st.sampled_from(KEYS), declared)),
        draw(st.dictionaries(st.sampled_from(KEYS), WEIGHTS)),
        [None if replicas is None or draw(st.integers(0, 5)) == 0 else rank // replicas for rank in range(count)],
    )


def assert_same(found: Mapping[str, float | None], expected: Mapping[str, float | None], rel: float) -> None:
    """Equal but for rounding; None, NaN and the infinities are four different values."""
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        other = found[key]
        if value is None or other is None or not math.isfinite(value):
            assert (other is None, repr(other)) == (value is None, repr(value)), key
        else:
            assert math.isclose(other, value, rel_tol=rel, abs_tol=1e-9), (key, other, value)


def same_digits(found: Mapping[str, float | None], expected: Mapping[str, float | None]) -> bool:
    return {key: repr(value) for key, value in found.items()} == {key: repr(value) for key, value in expected.items()}
