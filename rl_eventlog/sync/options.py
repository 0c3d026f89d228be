"""What the user of a sync may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Hold = Literal["checkpoint", "none"]


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """Options of a sync, the same for each of its runs."""

    dry_run: bool = False
    """Only tell what would be sent."""
    final: bool = False
    """Also send steps that may not be complete."""
    hold: Hold = "checkpoint"
    """`checkpoint` keeps the steps of a live role back that are beyond its newest checkpoint, so that a
    restart corrects nothing; `none` does not."""
