"""Looking after the files of a run: verify, seal, compact."""

from __future__ import annotations

from .compact import CompactReport, compact
from .seal import SealReport, seal
from .verify import Finding, VerifyReport, WriterTable, verify

__all__ = ["CompactReport", "Finding", "SealReport", "VerifyReport", "WriterTable", "compact", "seal", "verify"]
