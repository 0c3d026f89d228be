"""The key conventions of NeMo RL and verl: words of the last segment decide; on request, and never against a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest

from rl_eventlog import EventWriter, Max, Mean, Run
from rl_eventlog.errors import OptionError
from rl_eventlog.types import REDUCTIONS
from rl_eventlog.writer.event_writer import ReduceRules
from rl_eventlog.writer.reduce_rules import RULES, nemo_rl, verl

NEMO_RL = {
    "mean": [
        *("train/lr", "lr", "train/wd", "train/reward", "train/filtered_reward"),
        *("train/global_valid_seqs", "train/global_valid_toks", "train/mean_prompt_length", "rollout/mean_gen_tokens"),
        *("rollout/truncation_rate", "rollout/max_turns_reached_rate", "rollout/natural_termination_rate"),
        *("advantages/mean", "field/median", "field/stddev", "turns_per_sample/p95", "max_gen_tokens_per_turn/p99"),
        *("rollout/avg_turns_per_sample", "performance/average_token_imbalance", "trajectory_duration_s"),
    ],
    "last": ["train/grad_norm", "critic/grad_norm"],
    "min": ["train/probs_ratio_min", "train/probs_ratio_clamped_min", "advantages/min", "rollout/min_total_reward"],
    "max": [
        *("train/probs_ratio_max", "train/probs_ratio_clamped_max", "advantages/max", "rollout/max_total_reward"),
        *("rollout/max_turns_per_sample", "train/max_seq_mult_prob_error_after_mask", "trajectory_duration_s/max"),
    ],
    "sum": [
        *("train/loss", "train/kl_penalty", "train/num_valid_samples", "train/total_num_tokens", "advantages/sum"),
        *("rollout/total_turns", "train/rewards_chosen_mean", "train/grad_norm/x", "min/loss", "mean_x/loss"),
        *(
            "train/maximum_len",
            "admin/loss",
            "minibatch/loss",
            "train/minibatch_loss",
            "train/maxima",
            "train/lr_scale",
        ),
    ],
}
VERL = {
    "mean": [
        *("actor/pg_loss", "actor/grad_norm", "critic/score/mean", "train/tokens", "max/loss", "min_len/mean"),
        *("train/maximum_len", "admin/loss", "minibatch/loss", "actor/minibatch_loss", "actor/minmax", "a/climax_len"),
    ],
    "min": ["critic/score/min", "actor/ratio_min", "min_len", "response_length/min/"],
    "max": ["critic/score/max", "actor/ratio_max", "perf/max_memory_allocated_gb", "max", "actor/min_of_max"],
}


@pytest.mark.parametrize(("reduction", "names"), NEMO_RL.items())
def test_nemo_rls_keys(reduction: str, names: list[str]) -> None:
    assert {name: nemo_rl(name) for name in names} == dict.fromkeys(names, reduction)


@pytest.mark.parametrize(("reduction", "names"), VERL.items())
def test_verls_keys(reduction: str, names: list[str]) -> None:
    assert {name: verl(name) for name in names} == dict.fromkeys(names, reduction)


def test_every_rule_can_be_asked_for_and_gives_what_reading_knows() -> None:
    assert tuple(RULES) == get_args(ReduceRules)
    for rule in RULES.values():
        assert {rule(name) for names in (*NEMO_RL.values(), *VERL.values()) for name in names} <= set(REDUCTIONS)


def in_files(path: Path) -> dict[str, str | None]:
    """The reductions in the sealed files."""
    rows = [row for file in path.glob("events/metrics/*/*.parquet") for row in pq.read_table(file).to_pylist()]
    return {row["name"]: row["reduction"] for row in rows}


def log_all(root: Path, **options: Any) -> dict[str, str | None]:
    """By the fast path, and by the rule of calls that have no plan: one holds a null, one a nested mapping."""
    with EventWriter.open(root, run="r", rank=0, capture_diff=False, **options) as log:
        log.log_metrics({"loss": 1.0, "grad_norm": 1.0, "tokens": 9.0}, 1, "fast", reduce={"tokens": "sum"})
        log.log_metrics({"loss": 1.0, "grad_norm": None, "ratio_max": Mean(1.0)}, 1, "slow")
        log.log_metrics({"nested": {"lr": 1.0, "ratio_max": 1.0, "lr_min": Max(3.0)}}, 1, reduce={"*lr": "p50"})
        log.log_metrics({"samples": 10, "loss": 1.0}, 1, "axis", "samples")
    return in_files(root / "r")


def test_the_reduction_lands_in_the_files_and_what_is_declared_wins(tmp_path: Path) -> None:
    assert log_all(tmp_path, reduce_rules="nemo_rl") == {
        "fast/loss": "sum",
        "fast/grad_norm": "last",
        "fast/tokens": "sum",
        "slow/loss": "sum",
        "slow/grad_norm": "last",
        "slow/ratio_max": "mean",
        "nested/lr": "p50",
        "nested/ratio_max": "max",
        "nested/lr_min": "max",
        "axis/loss": "sum",
    }


def test_verls_rule_lands_in_the_files(tmp_path: Path) -> None:
    found = log_all(tmp_path, reduce_rules="verl")
    assert {name for name, reduction in found.items() if reduction == "mean"} == {
        *("fast/loss", "fast/grad_norm", "slow/loss", "slow/grad_norm", "slow/ratio_max", "axis/loss"),
    }


def test_nothing_is_declared_unless_asked_for(tmp_path: Path) -> None:
    found = log_all(tmp_path)
    assert {name for name, reduction in found.items() if reduction is not None} == {
        *("fast/tokens", "slow/ratio_max", "nested/lr", "nested/lr_min"),
    }


def test_ranks_are_merged_by_the_rule(tmp_path: Path) -> None:
    for rank in (0, 1):
        with EventWriter.open(
            tmp_path, run="r", rank=rank, launch_id="one", reduce_rules="nemo_rl", capture_diff=False
        ) as log:
            log.log_metrics({"loss": 0.25 + rank, "ratio_min": rank, "lr": 0.5, "grad_norm": 3.0 + rank}, step=1)
    merged = dict(Run(tmp_path / "r").metrics().select("name", "value").collect().rows())
    assert merged == {"loss": 1.5, "ratio_min": 0.0, "lr": 0.5, "grad_norm": 3.0}


def test_what_was_accumulated_stays_a_mean(tmp_path: Path) -> None:
    with EventWriter.open(tmp_path, run="r", rank=0, capture_diff=False, reduce_rules="nemo_rl") as log:
        log.accumulate({"loss": 1.0, "ratio": Max(1.0)}, weight=3)
        log.log_accumulated(1)
    assert in_files(tmp_path / "r") == {"loss": "mean", "ratio": "max"}


def test_a_rule_that_is_not_known_is_refused(tmp_path: Path) -> None:
    unknown: Any = "openrlhf"
    with pytest.raises(OptionError, match='reduce_rules=\'openrlhf\' is not known: pass one of "nemo_rl", "verl"'):
        EventWriter.open(tmp_path, run="r", reduce_rules=unknown)
    assert not list(tmp_path.iterdir())
