"""Looking after the files of a run: verify, seal, compact."""

from __future__ import annotations

from .compact import CompactReport, compact
from .findings import REMEDIES, Finding
from .many import CompactResult, compact_many
from .seal import SealReport, seal
from .verify import VerifyReport, WriterTable, verify

__all__ = [
    "REMEDIES",
    "CompactReport",
    "CompactResult",
    "Finding",
    "SealReport",
    "VerifyReport",
    "WriterTable",
    "compact",
    "compact_many",
    "seal",
    "verify",
]
