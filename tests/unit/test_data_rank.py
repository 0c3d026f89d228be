"""data_rank: the README's lines give it right under each parallelism, and totals are right with it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from rl_eventlog import EventWriter, Max, Mean, Run, Sum
from rl_eventlog.maintain import verify

RANKS = 8


def lines() -> dict[str, str]:
    """The README's table: what comes after `data_rank=`, by the parallelism."""
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    table = text.partition("| parallelism | `data_rank=` |")[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| (.+?) \| `([^`]+)`", table, re.MULTILINE))


def line_for(*words: str) -> str:
    (found,) = [line for place, line in lines().items() if all(word in place for word in words)]
    return found


@pytest.fixture(params=range(RANKS))
def rank(request: pytest.FixtureRequest) -> Iterator[int]:
    """Each rank in turn, in a process group in which collectives do nothing."""
    rank: int = request.param
    torch.distributed.init_process_group("fake", rank=rank, world_size=RANKS, store=FakeStore())
    yield rank
    torch.distributed.destroy_process_group()


def evaluate(line: str, **names: Any) -> Any:
    return eval(line, {"torch": torch, **names})


def test_the_line_for_a_mesh_of_data_and_tensor_ranks(rank: int) -> None:
    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    assert evaluate(line_for("FSDP2 and TP"), mesh=mesh) == rank // 2


def test_the_line_for_hybrid_sharding_with_tensor_ranks(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
    assert evaluate(line_for("HSDP and TP"), mesh=mesh) == rank // 2


def test_the_line_where_each_rank_has_its_own_data(rank: int) -> None:
    assert evaluate(line_for("alone")) == rank


@pytest.mark.parametrize("rank", range(RANKS), indirect=False)
def test_the_lines_for_megatron(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its order of ranks: tensor, context, data, pipeline, here of two each but the pipeline."""

    def get_data_parallel_rank(with_context_parallel: bool = False) -> int:
        return rank // 2 if with_context_parallel else rank // 4

    state = ModuleType("megatron.core.parallel_state")
    vars(state)["get_data_parallel_rank"] = get_data_parallel_rank
    core = ModuleType("megatron.core")
    vars(core)["parallel_state"] = state
    for module in (ModuleType("megatron"), core, state):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    ((place, line),) = [(place, line) for place, line in lines().items() if "import parallel_state" in place]
    names: dict[str, Any] = {}
    exec(place.partition("`")[2].rstrip("`"), names)
    assert evaluate(line, **names) == rank // 4
    assert evaluate(line_for("context-parallel"), **names) == rank // 2


#: Two replicas, each a pipeline: a first stage of two tensor-parallel ranks, a last one of one rank.
#: rank -> (data rank, whether it is of the last stage)
PIPELINE = {0: (0, False), 1: (0, False), 2: (1, False), 3: (1, False), 4: (0, True), 5: (1, True)}
LOSSES, TOKENS = ({0: [1.0, 2.0, 4.0], 1: [5.0, 3.0, 2.0]}, {0: [900, 700, 512], 1: [100, 300, 480]})


def log_pipeline(root: Path, *, told: bool) -> Path:
    for rank, (replica, last) in PIPELINE.items():
        data_rank = replica if told else None
        with EventWriter.open(
            root, run="r", rank=rank, world_size=6, data_rank=data_rank, launch_id="one", capture_diff=False
        ) as log:
            for step in range(3):
                tokens = TOKENS[replica][step]
                metrics: dict[str, Any] = {"tokens": Sum(tokens), "peak": Max(rank * 10.0)}
                if last:
                    metrics |= {
                        "loss": Mean(LOSSES[replica][step], weight=tokens),
                        "stage1/logits": Mean(float(replica)),
                    }
                else:
                    metrics["stage0/norm"] = Mean(2.0 + replica + step * step)
                log.log_metrics(metrics, step=step)
    return root / "r"


def of_step(path: Path, step: int) -> Mapping[str, float]:
    rows = Run(path).metrics().collect().filter(step=step)
    return dict(rows.select("name", "value").rows())


def test_uneven_pipeline_stages_give_the_right_totals(tmp_path: Path) -> None:
    path = log_pipeline(tmp_path, told=True)
    for step in range(3):
        tokens = [TOKENS[replica][step] for replica in (0, 1)]
        losses = [LOSSES[replica][step] for replica in (0, 1)]
        assert of_step(path, step) == {
            "tokens": sum(tokens),
            "loss": pytest.approx((losses[0] * tokens[0] + losses[1] * tokens[1]) / sum(tokens), rel=1e-15),
            "stage0/norm": 2.5 + step * step,
            "stage1/logits": 0.5,
            "peak": 50.0,
        }
    assert verify(path).findings == ()


def test_without_data_ranks_each_rank_is_added_and_verify_says_so(tmp_path: Path) -> None:
    path = log_pipeline(tmp_path, told=False)
    assert of_step(path, 0)["tokens"] == 3 * (900 + 100)
    (finding, *_) = verify(path).findings
    assert (finding.kind, finding.place) == ("replicated sum", "main")
    assert "ranks 0 to 1, 4; ranks 2 to 3, 5" in finding.detail.replace(" and ", ", ")
