"""The log calls of a writer: what a training hands over, to rows of the tables.

- No call raises because of a value; what cannot be logged is skipped, counted, and named once.
- Calls may come from any thread, and from a signal handler.
"""

from __future__ import annotations

import functools
import io
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import pyarrow as pa

from rl_eventlog.errors import WriteError, WriterClosedError
from rl_eventlog.value_types import ValueType

from . import distributions
from .accumulate import Accumulator
from .artifacts import Artifact
from .batches import Metric, Position, metrics_batch, row_batch, rows_batch
from .deferred import BIG_BYTES
from .given_samples import GivenSamples
from .gpu_samples import gpu_row
from .hparams import flatten_hparams
from .reduce_rules import Rule
from .samples import sample_batches
from .session import Session
from .skips import Skips
from .text import text_of, to_json
from .thinning import Thinning
from .timers import Timer
from .values import Sorted, copied, is_large, lookup, number_of, sort_values, start_of, step_of

MAX_TEXT_BYTES = 64 << 10
_INT64 = 1 << 63
_SHOWN_CHARACTERS = 80
_FAR_SECONDS = 1e12  # what a time in microseconds holds in 64 bits, and NaN is not below it
P = ParamSpec("P")


def _harmless(method: Callable[Concatenate[LogCalls, P], None]) -> Callable[Concatenate[LogCalls, P], None]:
    """Count and name what goes wrong inside a log call, and let the training go on.

    Through come what the user asked for (`WriteError`), calls of a closed writer, and calls that do
    not fit the signature.
    """

    @functools.wraps(method)
    def call(self: LogCalls, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except (WriteError, WriterClosedError):
            raise
        except Exception as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is None:  # not from inside the call
                raise
            self._failed(method.__name__, error)

    return call


class LogCalls(ABC):
    """The public log calls, on top of a session that a subclass keeps.

    Attributes:
        timer: times labelled spans: ``with log.timer.time("generation"): ...``. A span is logged when
            it ends, and counts to the step of that moment.
    """

    timer: Timer

    def __init__(self, thinning: Thinning, rule: Rule | None) -> None:
        self._thinning = thinning
        self._rule = rule
        self._step: int | None = None
        self._last_step: int | None = None
        self._skips = Skips()
        self._accumulator = Accumulator()
        self.timer = Timer(log_span=self._log_span, log_mark=self._log_mark)

    @abstractmethod
    def _ready(self) -> Session:
        """The session to write to.

        Raises:
            WriterClosedError: the writer is closed.
        """

    @_harmless
    def set_step(self, step: int | None) -> None:
        """The step of every later call that names none, timers included."""
        self._step = None if step is None else self._whole(step, "set_step")

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        step: int | None = None,
        prefix: str = "",
        step_metric: str | None = None,
        step_finished: bool = False,
        *,
        weight: float | Mapping[str, float] | None = None,
        reduce: str | Mapping[str, str] | None = None,
    ) -> None:
        """Log the values of one moment.

        Args:
            metrics: values by key. Scalars become metrics, lists and arrays distributions, texts
                markers; nested mappings are flattened with ``/``. `Mean(x, weight=n)`, `Sum`, `Max`, `Min`,
                `Last` and `Quantiles` of `rl_eventlog` declare their key, and win over `weight` and `reduce`;
                a `Mean` without a weight has the call's.
            step: training step; `set_step`'s where not given.
            prefix: put before each key, with one ``/``.
            step_metric: key of the value that is the position on another x-axis, with or without
                the prefix; it becomes no row of its own.
            step_finished: this process is done with the step.
            weight: weight in means over ranks, one for all keys or a mapping by key.
            reduce: how ranks are merged, one for all keys or a mapping by key or glob: mean, sum,
                min, max, last, none, std, p50, p90, p95, p99; `histogram` makes it a distribution. Others are kept
                for later versions.
        """
        try:
            session = self._ready()
            # `_chosen`, spelled out: this is the call that must be quick
            if type(step) is int and -_INT64 <= step < _INT64:
                chosen: int | None = step
                self._last_step = step
            else:
                chosen = self._chosen(step)
            time_us = time.time_ns() // 1000
            rows = session.plans.rows(metrics, chosen, time_us, prefix, step_metric, step_finished, weight, reduce)
            if rows is not None:
                session.rows.append("metrics", rows)
            else:
                self._log_any(metrics, chosen, prefix, step_metric, step_finished, weight, reduce)
        except (WriteError, WriterClosedError):
            raise
        except Exception as error:  # noqa: BLE001 -- as `_harmless`, spelled out: this is the call that must be quick
            self._failed("log_metrics", error)

    def _log_any(
        self,
        metrics: Any,
        step: int | None,
        prefix: str,
        step_metric: str | None,
        step_finished: bool,
        weight: Any,
        reduce: Any,
    ) -> None:
        """The rule of `log_metrics`, for calls that have no plan."""
        values = sort_values(metrics, weight)
        start = start_of(prefix)
        names = {key: start + key for key in (*values.scalars, *values.many, *values.large, *values.texts)}
        axis_value = self._take_axis(values, names, step_metric)
        values.spread_histograms(reduce, start)  # not the axis: it is no row
        axis = None if axis_value is None else text_of(step_metric)
        position = Position(step, time.time_ns() // 1000, axis, axis_value, step_finished)
        rows = []
        for key, value in values.scalars.items():
            typed, name = values.declared.get(key), names[key]
            weighed = self._weight(values.weights.get(key, values.weight), key, name)
            rows.append(Metric(name, value, weighed, self._reduction(reduce, key, name, typed)))
        if rows:
            self._append("metrics", metrics_batch(rows, position))
        elif step_finished:
            self._mark("step_closed", position, "debug", None, {})
        self._log_the_rest(values, names, position)

    @_harmless
    def accumulate(self, metrics: Mapping[str, Any], *, weight: float = 1.0) -> None:
        """Add one micro-batch to what `log_accumulated` logs; a crash takes what was not logged by then.

        Args:
            metrics: scalars by key, which become weighted means, or value types: `Sum(n)`, `Max(x)`, ...
            weight: weight of the micro-batch in means that have none of their own, say its number of tokens.
        """
        self._ready()
        for key, kind in self._accumulator.add(metrics, weight).items():
            self._skips.skip("not accumulated", key, kind)

    @_harmless
    def log_accumulated(
        self,
        step: int | None = None,
        *,
        prefix: str = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:
        """Log what was accumulated; the weight of each row is the sum of its weights."""
        metrics, weights = self._accumulator.take()
        # plain values are means, whatever a rule says of their keys
        reduce = None if self._rule is None else dict.fromkeys(weights, "mean")
        self.log_metrics(metrics, step, prefix, step_metric, step_finished, weight=weights, reduce=reduce)

    @_harmless
    def log_timing(self, name: str, seconds: float, step: int | None = None, *, start: float | None = None) -> None:
        """Log a duration.

        Args:
            name: name of the span, ``/`` for nesting.
            seconds: its length.
            step: training step; `set_step`'s where not given.
            start: when it began, seconds since 1970; unknown where not given.
        """
        self._ready()
        position = self._position(step, "log_timing")
        duration = number_of(seconds)
        if duration is None:
            self._skips.skip("no duration", text_of(name), type(seconds).__name__)
            return
        begin = number_of(start)
        row = {
            "step": position.step,
            "time": position.time_us,
            "name": text_of(name),
            "start": int(begin * 1_000_000) if begin is not None and abs(begin) < _FAR_SECONDS else None,
            "duration_seconds": duration,
            "count": 1,
        }
        self._append("timings", row_batch("timings", row))

    @_harmless
    def log_hyperparams(self, params: Any) -> None:
        """Log hyperparameters: a mapping, dataclass, namespace, pydantic model or OmegaConf node.

        Credentials are replaced before anything is written. Logged again, the later value counts
        and the earlier one stays in the history.
        """
        self._ready()
        try:
            flat = flatten_hparams(params)
        except TypeError as error:
            self._skips.skip("no hyperparameters", "params", str(error))
            return
        position = self._position(None, "log_hyperparams")
        rows = [{"step": position.step, "time": position.time_us, "key": k, "value": v} for k, v in flat.items()]
        if rows:
            self._append("hparams", rows_batch("hparams", rows))

    @_harmless
    def log_histogram(self, histogram: Any, step: int | None = None, name: str = "histogram") -> None:
        """Log a distribution.

        Args:
            histogram: values of any number and shape, or a pair (counts [K], edges [K+1]) as
                ``numpy.histogram`` returns it.
            step: training step.
            name: name of the series.
        """
        self._ready()
        position, name = self._position(step, "log_histogram"), text_of(name)
        if is_large(histogram):
            self._defer_distribution(name, name, copied(histogram), position)
            return
        try:
            pair = isinstance(histogram, tuple) and [hasattr(part, "__len__") for part in histogram] == [True, True]
            columns = distributions.given_histogram(*histogram) if pair else distributions.sketch(histogram)
        except (ValueError, TypeError) as error:
            self._skips.skip("no histogram", name, text_of(error))
            return
        self._log_distribution(name, columns, position)

    @_harmless
    def log_plot(self, figure: Any, step: int | None = None, name: str = "plot") -> None:
        """Log a Matplotlib figure, or anything with its `savefig`, as a PNG artifact."""
        self._ready()
        image, name = io.BytesIO(), text_of(name)
        try:
            figure.savefig(image, format="png")
        except Exception as error:  # noqa: BLE001 -- drawing runs the user's and a library's code
            self._skips.skip("no figure", name, f"{type(error).__name__}: {text_of(error)}")
            return
        size = image.tell()
        image.seek(0)
        artifact = Artifact(image, name, "figure", f"{name}.png")
        self._store(artifact, self._position(step, "log_plot"), size=size, memory=size)

    @_harmless
    def log_artifact(self, path: str | os.PathLike[str], name: str | None = None, kind: str = "file") -> None:
        """Keep a copy of a file in the run. A large one is copied on a thread: leave it as it is until `flush`.

        Args:
            path: the file; it may be removed once the call has returned.
            name: name in the run; the file's own where not given.
            kind: file, figure, checkpoint or model.
        """
        self._ready()
        source = Path(path)
        try:
            file = source.open("rb")
        except OSError as error:
            self._skips.skip("artifacts not stored", text_of(error.filename), text_of(error))
            return
        artifact = Artifact(file, text_of(name or source.name), text_of(kind), text_of(source))
        self._store(artifact, self._position(None, "log_artifact"), size=os.fstat(file.fileno()).st_size)

    @_harmless
    def log_gpu_samples(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log looks at GPUs and hosts: mappings with the columns of the gpu_samples table."""
        self._ready()
        position = self._position(None, "log_gpu_samples")
        filled = [gpu_row(row, position, self._skips) for row in rows]
        if filled:
            self._append("gpu_samples", rows_batch("gpu_samples", filled))

    @_harmless
    def log_samples(self, samples: Any, step: int | None = None, *, split: str = "validation") -> None:
        """Log generated responses.

        Args:
            samples: records (a list of mappings), columns (a mapping of equally long lists), an Arrow
                table or a Polars frame. Known fields: dataset, prompt, response, reference, messages,
                reward, rewards, advantage, ...; others are kept in `extra`. More than 64 KiB are written
                by a thread: leave arrays above 1 MiB, and lists within the columns, as they are until `flush`.
            step: training step.
            split: ``validation`` or ``rollout``.
        """
        session = self._ready()
        position, split = self._position(step, "log_samples"), text_of(split)
        try:
            given = GivenSamples(samples)
        except (ValueError, TypeError) as error:
            self._skips.skip("no samples", split, text_of(error))
            return
        count = self._thinning.take(given.count, position.step, split)
        if count < given.count:
            self._skips.counters["samples thinned"] += given.count - count
        if not count:
            return

        def encode() -> Iterator[pa.RecordBatch]:
            return sample_batches(
                given, count, step=position.step, split=split, time_us=position.time_us, skipped=self._skip_sample
            )

        if given.size > BIG_BYTES:
            session.rows.defer("samples", encode, rows=count, size=given.size, may_be_dropped=split == "rollout")
            return
        for batch in encode():
            self._append("samples", batch)

    @_harmless
    def mark(
        self, /, name: str, *, step: int | None = None, level: str = "info", text: str = "", **fields: Any
    ) -> None:
        """Log that something happened: ``mark("checkpoint", step=100, path=...)``."""
        self._ready()
        self._mark(name, self._position(step, "mark"), level, text_of(text) or None, fields)

    def _append(self, table: str, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._ready().rows.append(table, batch)

    def _position(self, step: int | None, call: str) -> Position:
        return Position(self._chosen(step, call), time.time_ns() // 1000)

    def _chosen(self, step: Any, call: str = "log_metrics") -> int | None:
        """The step of a call: its own, else `set_step`'s."""
        if step is None:
            step = self._step
        elif type(step) is not int or not -_INT64 <= step < _INT64:
            step = self._whole(step, call)
        if step is not None:
            self._last_step = step
        return step if step is None else int(step)

    def _take_axis(self, values: Sorted, names: Mapping[str, str], step_metric: str | None) -> float | None:
        """Take the value that is the position out of the call."""
        if step_metric is None:
            return None
        unprefixed = [key for key in values.scalars if key == step_metric]
        for key in unprefixed or [key for key in values.scalars if names[key] == step_metric]:
            value = values.scalars[key]
            if value is not None and math.isfinite(value):
                del values.scalars[key]
                return float(value)
        return None

    def _whole(self, step: Any, call: str) -> int | None:
        whole = step_of(step)
        if whole is None:
            kind = type(step).__name__
            shown = text_of(step)[:_SHOWN_CHARACTERS]
            message = (
                f"step {shown!r} of {call} is no whole number of 64 bits ({kind}): its rows are kept without a step"
            )
            self._skips.note("steps that are none", f"{call} {kind}", message)
        return whole

    def _weight(self, declared: Any, key: str, name: str) -> float | None:
        weight = lookup(declared, key, name)
        number = number_of(weight)
        self._skips.check_weight(weight, number, name)
        return number

    def _reduction(self, declared: Any, key: str, name: str, typed: ValueType | None = None) -> str | None:
        reduction = lookup(declared, key, name) if typed is None else typed.reduction
        if reduction is None:
            return None if self._rule is None else self._rule(name)
        if isinstance(reduction, str):
            text = text_of(reduction)
            self._skips.check_reduction(text, name)
            return text
        self._skips.skip("reductions that are no names", name, type(reduction).__name__)
        return None

    def _skip_sample(self, index: int, kind: str) -> None:
        message = f"sample {index} of log_samples is left out: it is no readable mapping but {kind}"
        self._skips.note("samples skipped", kind, message)

    def _log_the_rest(self, values: Sorted, names: Mapping[str, str], position: Position) -> None:
        for key, many in values.many.items():
            self._log_distribution(names[key], distributions.sketch(many), position)
        for key, large in values.large.items():
            self._defer_distribution(key, names[key], large, position)
        for key, text in values.texts.items():
            self._mark(names[key], position, "info", text, {})
        for key, integer in values.inexact.items():
            if self._skips.first_time("inexact_integer", key):
                self._mark("inexact_integer", position, "warning", None, {"key": names[key], "value": text_of(integer)})
        for key, kind in values.skipped.items():
            self._skips.skip("values skipped", key, kind)

    def _log_distribution(self, name: str, columns: Mapping[str, Any], position: Position) -> None:
        self._append("distributions", distributions.distribution_batch(name, columns, position))

    def _defer_distribution(self, key: str, name: str, values: Any, position: Position) -> None:
        def encode() -> list[pa.RecordBatch]:
            try:
                columns = distributions.sketch(values)
            except Exception:  # noqa: BLE001 -- values are the user's objects: their own code may raise anything
                self._skips.skip("values skipped", key, type(values).__name__)
                return []
            return [distributions.distribution_batch(name, columns, position)]

        size = getattr(values, "nbytes", None) or 8 * len(values)
        self._ready().rows.defer("distributions", encode, rows=1, size=size)

    def _mark(self, name: str, position: Position, level: str, text: str | None, fields: Mapping[str, Any]) -> None:
        row = {
            "step": position.step,
            "time": position.time_us,
            "name": text_of(name),
            "level": text_of(level),
            "text": None if text is None else text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore"),
            "fields": to_json(dict(fields)) if fields else None,
        }
        self._append("markers", row_batch("markers", row))

    def _log_span(self, label: str, seconds: float, start: float | None) -> None:
        self.log_timing(label, seconds, start=start)

    @_harmless
    def _log_mark(self, label: str, metadata: Any) -> None:
        fields = metadata if isinstance(metadata, Mapping) else {} if metadata is None else {"metadata": metadata}
        self._mark(label, self._position(None, "mark"), "info", None, fields)

    def _store(self, artifact: Artifact, position: Position, *, size: int, memory: int = 0) -> None:
        """Store a file and its row: here, or on a thread where it is large."""
        session = self._ready()

        def encode() -> list[pa.RecordBatch]:
            try:
                row = artifact.store(session.layout)
            except OSError as error:
                self._skips.skip("artifacts not stored", artifact.name, text_of(error))
                session.rows.rows_lost["artifacts"] += 1
                return []
            return [row_batch("artifacts", {"step": position.step, "time": position.time_us, **row})]

        if size > BIG_BYTES or session.rows.queued:  # its own fsync may stall
            session.rows.defer("artifacts", encode, rows=1, size=memory)
        else:
            for batch in encode():
                self._append("artifacts", batch)

    def _failed(self, call: str, error: Exception) -> None:
        self._skips.skip("calls failed", call, f"{type(error).__name__}: {text_of(error)}")
