"""What `verify` can find, and what a person can do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["note", "warning", "error"]

_COPY_AGAIN = "copy it again from where the run was written; what is damaged there too is lost"
_DATA_RANK = (
    "if these ranks see the same data, give EventWriter.open data_rank=, the same to them, as the README shows for "
    "Megatron and FSDP: then each replica counts once. A value that was merged already is declared last, or mean"
)

REMEDIES = {
    "file": f"{_COPY_AGAIN}. Without a gap beside it, other files have all its rows",
    "folded file": _COPY_AGAIN,
    "artifact": _COPY_AGAIN,
    "gap": "copy the run again: a copy that ran while files were sealed may lack some. What the original lacks is lost",
    "fallback": "copy the run's folder under that fallback folder over this one, and verify again",
    "rows lost": "the log of the training says why they could not be written: a full disk, a quota, a stall",
    "rows at risk": "while the process lives, do not kill it: it writes them once the file system answers",
    "never wrote": "see in the job's own logs whether they started. How many there should be is what world_size= says",
    "torn tail": "nothing, if the process was killed: that call had not returned. Else copy the file again",
    "no end": "nothing: it was killed or lost, and a later attempt or incarnation took its place",
    "waiting": "see to the rank that is behind or silent: this one waits for it",
    "stalled": "look at its process, on its node: it lives and does not go on, or its node or file system hangs",
    "lost": "restart the run. `rleventlog seal` seals what it left; add --assume-dead if it ran elsewhere and is gone",
    "clock": "set the clocks: states and times are judged by them, the order of steps and attempts is not",
    "same rank": "give each process its own rank=, or another role=: rows of one of them are hidden",
    "replicated sum": _DATA_RANK,
    "replicated mean": _DATA_RANK,
    "changed reduction": "the newest declaration counts; give reduce= the same everywhere",
    "unknown reduction": "a newer version may know it: until then the series is shown rank by rank only",
    "bad weight": "rows with such a weight count in no mean: correct weight=",
    "replicas differ": "ranks of one data_rank should log the same: the lowest rank's value counts",
    "resume step differs": "give resume_step= the same in all ranks: the lowest hides what older attempts have",
    "restart order": "nothing, if the curves are right; else give each start an RLEVENTLOG_LAUNCH_ID of its own",
    "launch again": 'give each start an RLEVENTLOG_LAUNCH_ID of its own; attempts="all" shows what is hidden',
    "launches overlap": "give one job one RLEVENTLOG_LAUNCH_ID in all its processes, two jobs two roles or two runs",
    "hparam changed": "nothing, if it was meant: the newest value counts",
    "hparam differs": "nothing, if it was meant: ranks logged different values",
}
"""What to do, by kind."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a person should know."""

    severity: Severity
    """`error`: rows or files are missing or damaged. `warning`: not as it should be. `note`: good to know."""
    kind: str
    """A key of `REMEDIES`."""
    place: str
    """File, writer, rank or series."""
    detail: str

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return REMEDIES[self.kind]
