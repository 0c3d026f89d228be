"""`NullWriter`: takes every call of an `EventWriter` and writes nothing."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from .session import CloseReport
from .timers import Timer

if TYPE_CHECKING:
    from typing_extensions import Self


class NullWriter:
    """For processes that should stay quiet, and for code that runs without a log.

    Its `timer` measures and remembers, so that code using the result goes on working.
    """

    def __init__(self) -> None:
        self.timer = Timer()

    def _ignore(self, *arguments: Any, **keywords: Any) -> None:
        """Take anything."""

    set_step = log_metrics = accumulate = log_accumulated = log_timing = log_hyperparams = _ignore
    log_histogram = log_plot = log_artifact = log_gpu_samples = log_samples = mark = flush = _ignore

    def close(self, *_: object, **__: object) -> CloseReport:
        """Report nothing."""
        return CloseReport({}, {})

    def __enter__(self) -> Self:
        """Use as a context manager, like an `EventWriter`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Exceptions pass through."""
