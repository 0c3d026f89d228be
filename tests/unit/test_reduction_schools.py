"""One step of four ranks, merged by four schools: what guessing from names and averaging averages costs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_eventlog import EventWriter, Mean, Run, Sum

#: Tensor-parallel ranks 0, 1 and 2, 3 see the same data; the second replica has few tokens.
RANKS = (
    {"loss": 1.0, "tokens": 900},
    {"loss": 1.0, "tokens": 900},
    {"loss": 5.0, "tokens": 100},
    {"loss": 5.0, "tokens": 100},
)
LOSS, TOKENS = "minibatch_loss", "num_tokens"
VALUES = {LOSS: [rank["loss"] for rank in RANKS], TOKENS: [rank["tokens"] for rank in RANKS]}


def mean_of_means(key: str, values: list[float]) -> float:
    """What rank-unaware trackers and hand-written all_reduce(AVG) do."""
    return sum(values) / len(values)


def nemo_rl_default(key: str, values: list[float]) -> float:
    """NeMo RL: a key that is not in its lists is summed."""
    return sum(values)


def verl_substring(key: str, values: list[float]) -> float:
    """verl: `max` or `min` anywhere in the key decides, else the mean."""
    if "max" in key:
        return max(values)
    return min(values) if "min" in key else sum(values) / len(values)


@pytest.mark.parametrize(
    ("school", "loss", "tokens"),
    [(mean_of_means, 3.0, 500.0), (nemo_rl_default, 12.0, 2000.0), (verl_substring, 1.0, 500.0)],
)
def test_other_schools_say_something_else(
    school: Callable[[str, list[float]], float], loss: float, tokens: float
) -> None:
    assert school(LOSS, VALUES[LOSS]) == loss
    assert school(TOKENS, VALUES[TOKENS]) == tokens


def test_declared_reductions_with_data_ranks_are_the_truth(tmp_path: Path) -> None:
    for rank, logged in enumerate(RANKS):
        with EventWriter.open(
            tmp_path, run="r", rank=rank, world_size=4, data_rank=rank // 2, launch_id="one", capture_diff=False
        ) as log:
            log.log_metrics(
                {LOSS: Mean(logged["loss"], weight=logged["tokens"]), TOKENS: Sum(logged["tokens"])}, step=1
            )
    merged = dict(Run(tmp_path / "r").metrics().select("name", "value").collect().rows())
    assert merged == {LOSS: (1.0 * 900 + 5.0 * 100) / 1000, TOKENS: 1000.0}


def test_the_guide_shows_these_numbers() -> None:
    text = (Path(__file__).parents[2] / "docs/guide.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (declared|mean of means|NeMo RL|verl).*? \| ([0-9.]+) \| ([0-9.]+) \|", text, re.MULTILINE)
    assert {school: (float(loss), float(tokens)) for school, loss, tokens in rows} == {
        "declared": (1.4, 1000.0),
        "mean of means": (mean_of_means(LOSS, VALUES[LOSS]), mean_of_means(TOKENS, VALUES[TOKENS])),
        "NeMo RL": (nemo_rl_default(LOSS, VALUES[LOSS]), nemo_rl_default(TOKENS, VALUES[TOKENS])),
        "verl": (verl_substring(LOSS, VALUES[LOSS]), verl_substring(TOKENS, VALUES[TOKENS])),
    }
