"""Looking after the files of a run: verify, seal, compact."""

from __future__ import annotations

from .compact import CompactReport, compact
from .findings import REMEDIES, Finding
from .seal import SealReport, seal
from .verify import VerifyReport, WriterTable, verify

__all__ = [
    "REMEDIES",
    "CompactReport",
    "Finding",
    "SealReport",
    "VerifyReport",
    "WriterTable",
    "compact",
    "seal",
    "verify",
]
