"""Checkpoints: files that are there whole or not at all, the newest only.

- A checkpoint of step s is written after every process has logged all of its rows up to s.
- `newest` needs no torch; the launcher calls it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_NAME = re.compile(r"step-(\d+)\.pt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of the training after a step."""

    step: int
    policy: Tensor
    reference: Tensor
    optimizer: dict[str, Any]
    generators: list[Tensor]
    """State of each trainer's random numbers, by rank."""

    def save(self, folder: Path) -> Path:
        """Write to `folder`, then remove the older checkpoints there."""
        import torch

        older = _by_step(folder)
        path = folder / f"step-{self.step}.pt"
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            torch.save({name: getattr(self, name) for name in self.__slots__}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        for step, other in older.items():
            if step < self.step:
                other.unlink()
        return path

    @staticmethod
    def load(folder: Path, step: int) -> Checkpoint:
        """Read the checkpoint of `step`."""
        import torch

        return Checkpoint(**torch.load(folder / f"step-{step}.pt", weights_only=True))


def newest(folder: Path) -> int | None:
    """Step of the newest checkpoint in `folder`, None where there is none."""
    return max(_by_step(folder), default=None)


def _by_step(folder: Path) -> dict[int, Path]:
    found = ((_NAME.fullmatch(path.name), path) for path in folder.glob("step-*.pt"))
    return {int(match[1]): path for match, path in found if match}
