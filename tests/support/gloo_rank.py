"""One rank of a gloo group that merges what it is told to: `python -m tests.support.gloo_rank RANK RANKS FILE`.

Reads pickled (metrics, arguments, name of the group) from stdin and answers (result, collectives) on stdout.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]


class GlooRanks:
    """Rank processes that stay: a collective of theirs takes a millisecond."""

    def __init__(self, ranks: int, file: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.gloo_rank", str(rank), str(ranks), str(file)],
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for rank in range(ranks)
        ]

    def reduce(self, calls: Sequence[tuple[Any, dict[str, Any]]], group: str = "world") -> list[tuple[Any, int]]:
        """Of each rank the result of `reduce_across_ranks(metrics, **arguments)` and the collectives it took."""
        for process, call in zip(self._processes, calls, strict=True):
            assert process.stdin is not None
            pickle.dump((*call, group), process.stdin)
            process.stdin.flush()
        return [pickle.load(process.stdout) for process in self._processes if process.stdout is not None]

    def close(self) -> None:
        for process in self._processes:
            process.communicate(timeout=60)


def main(rank: int, ranks: int, file: str) -> None:
    import torch.distributed as dist

    from rl_eventlog import reduce_across_ranks

    collectives = 0

    def counted(collective: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal collectives
            collectives += 1
            return collective(*arguments, **options)

        return call

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    halves = ([r for r in range(ranks) if r % 2 == 0], [r for r in range(ranks) if r % 2])
    groups = {"world": None, "data": [dist.new_group(half) for half in halves][rank % 2]}
    dist.all_gather_into_tensor = counted(dist.all_gather_into_tensor)
    dist.all_gather_object = counted(dist.all_gather_object)
    while True:
        try:
            metrics, arguments, group = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        collectives = 0
        result = reduce_across_ranks(metrics, group=groups[group], **arguments)
        pickle.dump((result, collectives), answers)
        answers.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
