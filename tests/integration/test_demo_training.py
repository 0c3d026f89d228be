"""The demo's training, for real: it learns, logs what it did, and goes on after a death."""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path

import polars as pl
import pytest

from rl_eventlog import Run
from rl_eventlog.errors import MissingDependencyError
from rl_eventlog_cli.demo.config import PROCESSES, Death, DemoConfig, Role
from rl_eventlog_cli.demo.launch import launch

pytestmark = pytest.mark.integration

CONFIG = DemoConfig(seed=0)


def trained(config: DemoConfig, folder: Path) -> Run:
    result = launch(config, root=folder / "runs", run="training")
    assert result.failure is None, result.failure.output.read_text(errors="replace")
    return Run(folder / "runs" / "training")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(CONFIG, tmp_path_factory.mktemp("training"))


def each(run: Run, name: str, role: str) -> pl.DataFrame:
    return run.metrics(name, ranks="each", role=role).sort("step", "rank").collect()


def reduced(run: Run, name: str, role: str) -> dict[int, float]:
    frame = run.metrics(name, role=role).sort("step").collect()
    return dict(zip(frame["step"], frame["value"], strict=True))


def assert_learned(run: Run) -> None:
    accuracy = list(reduced(run, "validation/accuracy", "controller").values())
    assert len(accuracy) >= 20
    first, last = sum(accuracy[:10]) / 10, sum(accuracy[-10:]) / 10
    assert last >= 0.5
    assert last >= 3 * first


def test_seed_0_learns(run: Run) -> None:
    assert_learned(run)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_other_seeds_learn(seed: int, tmp_path: Path) -> None:
    assert_learned(trained(DemoConfig(seed=seed), tmp_path))


def test_every_process_logs_every_step_of_its_own_counting(run: Run) -> None:
    batches = CONFIG.steps * CONFIG.batches_per_step
    expected: dict[tuple[Role, str], range] = {
        ("trainer", "train/loss"): range(CONFIG.steps),
        ("rollout", "tokens"): range(batches),
        ("controller", "validation/accuracy"): range(CONFIG.evaluate_every - 1, CONFIG.steps, CONFIG.evaluate_every),
    }
    for (role, name), steps in expected.items():
        rows = each(run, name, role)
        ranks = {rank: list(steps) for rank in range(PROCESSES[role])}
        found = {rank: rows.filter(pl.col("rank") == rank)["step"].to_list() for rank in ranks}
        assert found == ranks


def test_what_trainers_learn_from_is_what_rollout_workers_wrote(run: Run) -> None:
    trained_tokens = reduced(run, "train/tokens", "trainer")
    written = reduced(run, "tokens", "rollout")
    per_step = CONFIG.batches_per_step
    assert trained_tokens == {
        step: sum(written[step * per_step + batch] for batch in range(per_step)) for step in range(CONFIG.steps)
    }


def test_trainer_ranks_stay_alike_and_leave_the_reference_policy(run: Run) -> None:
    norms = each(run, "train/grad_norm", "trainer").pivot("rank", index="step", values="value")
    assert norms["0"].to_list() == norms["1"].to_list()
    kl = each(run, "train/kl", "trainer")
    assert kl.filter(pl.col("step") == CONFIG.steps - 1)["value"].min() > 0.01  # type: ignore[operator]  # not empty
    entropy = reduced(run, "train/entropy", "trainer")
    assert entropy[CONFIG.steps - 1] < entropy[0]


def test_each_role_times_its_work(run: Run) -> None:
    names = run.timings().select("role", "name").unique().collect().rows()
    assert {
        ("trainer", "training"),
        ("trainer", "weight_sync"),
        ("rollout", "generation"),
        ("rollout", "reward"),
        ("rollout", "weight_sync"),
        ("controller", "validation"),
    } <= set(names)


def test_samples_say_what_was_asked_answered_and_earned(run: Run) -> None:
    samples = run.samples().collect()
    validation = samples.filter(pl.col("split") == "validation")
    evaluations = CONFIG.steps // CONFIG.evaluate_every
    assert len(validation) == evaluations * CONFIG.validation_samples
    for prompt, response, reference, reward in samples.select("prompt", "response", "reference", "reward").iter_rows():
        assert reference == "".join(sorted(prompt.removesuffix("=")))
        assert (reward == 1.0) == (response == reference)
    rollout = samples.filter(pl.col("split") == "rollout")
    assert len(rollout) == 2 * CONFIG.steps * CONFIG.batches_per_step * CONFIG.rollout_samples
    assert (rollout["token_ids"].list.len() == rollout["response_tokens"]).all()
    assert rollout["advantage"].null_count() == 0


def test_the_configuration_is_in_the_hyperparameters(run: Run) -> None:
    hparams = dict(run.hparams().select("key", "value").collect().iter_rows())
    assert hparams["learning_rate"] == "0.001"
    assert hparams["seed"] == "0"
    assert hparams["processes.rollout"] == "2"


def assert_whole(run: Run, role: Role, name: str, steps: range, resumed: int) -> None:
    """Every rank is in every step, and the second attempt wins from the step where it began."""
    frame = run.metrics(name, role=role).sort("step").collect()
    expected = [(step, PROCESSES[role], 2 if step >= resumed else 1) for step in steps]
    assert frame.select("step", "ranks", "attempt").rows() == expected


@pytest.mark.crash
@pytest.mark.parametrize(
    "death",
    [
        Death("trainer", 1, 4),
        pytest.param(Death("trainer", 0, 4), marks=pytest.mark.soak),
        pytest.param(Death("rollout", 0, 9), marks=pytest.mark.soak),
        pytest.param(Death("controller", 0, 5), marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_a_launch_dies_as_a_whole_and_its_restart_ends_with_every_step(death: Death, tmp_path: Path) -> None:
    config = DemoConfig.small()
    root = tmp_path / "runs"
    first = launch(config, root=root, run="killed", death=death)
    assert first.failure is not None
    assert (first.failure.role, first.failure.rank, first.failure.status) == (death.role, death.rank, -signal.SIGKILL)
    second = launch(config, root=root, run="killed", resume=True)
    assert second.failure is None
    assert second.launch_id != first.launch_id
    assert second.start == config.checkpoint_every
    run = Run(root / "killed")
    assert len(run.info.attempts) == 2
    assert run.info.gaps == ()
    batches = config.batches_per_step
    assert_whole(run, "trainer", "train/loss", range(config.steps), resumed=second.start)
    assert_whole(run, "rollout", "tokens", range(config.steps * batches), resumed=second.start * batches)
    evaluated = range(config.evaluate_every - 1, config.steps, config.evaluate_every)
    assert_whole(run, "controller", "validation/accuracy", evaluated, resumed=second.start)


def test_checkpoints_of_another_training_are_not_taken_over_unasked(tmp_path: Path) -> None:
    work = tmp_path / "checkpoints" / "training"
    work.mkdir(parents=True)
    (work / "step-2.pt").touch()
    with pytest.raises(FileExistsError, match="resume it or choose another run name"):
        launch(DemoConfig.small(), root=tmp_path / "runs", run="training")
    assert not (tmp_path / "runs").exists()


def test_without_torch_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r'pip install "rl-eventlog\[torch\]"'):
        launch(DemoConfig.small(), root=tmp_path / "runs", run="training")
