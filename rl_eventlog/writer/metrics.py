"""The fast path of `log_metrics`: one plan for each shape of call, kept for the next call like it.

A plan knows the names, reductions and axis of a call, so that only step, time, values and weights are
left to write. Calls that have no plan (nulls, texts, lists, nested mappings, odd keys) are not
touched here: the caller writes them through Arrow, to the same bytes.

The cache is bounded by `CACHE_BYTES`; what is pushed out is built again when it comes back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rl_eventlog.schema import table
from rl_eventlog.segment.template import Shape, Template, TemplateRows
from rl_eventlog.types import Identity
from rl_eventlog.value_types import Last, Max, Mean, Min, Sum

from .reduce_rules import Rule
from .scalars import plain_floats
from .skips import Skips
from .text import text_of
from .values import lookup, start_of

CACHE_BYTES = 16 << 20
_PLAN_BYTES = 2_000  # a plan's objects beside its message, roughly; measured
_ONE_NUMBER: dict[type, str] = {kind: kind.reduction for kind in (Mean, Sum, Max, Min, Last)}
_NAME_BYTES = 130  # a key's place in tuples, its name, and its share of the key


@dataclass(frozen=True, slots=True)
class _Plan:
    template: Template
    axis_index: int | None
    """Index of the key whose value is the position."""
    size: int


class MetricPlans:
    """The plans of one writer. Not thread-safe where it fills templates: its rows are written under a lock.

    Attributes:
        evictions: plans pushed out so far.
    """

    def __init__(self, identity: Identity, skips: Skips, rule: Rule | None = None) -> None:
        """Make an empty cache for the segments of this identity; `skips` hears of unknown reductions.

        `rule` gives those that are not declared.
        """
        self._skips = skips
        self._rule = rule
        self._schema: pa.Schema = table("metrics").open.with_metadata(identity.to_metadata("metrics"))
        self._schema_message = self._schema.serialize().to_pybytes()
        self._plans: dict[Any, _Plan | None] = {}
        self._size = 0
        self.evictions = 0

    def rows(
        self,
        metrics: Mapping[str, Any],
        step: int | None,
        time_us: int,
        prefix: str,
        step_metric: str | None,
        step_finished: bool,
        weight: Any,
        reduce: Any,
    ) -> TemplateRows | None:
        """The rows of a call, or None where it is none for a plan."""
        if type(metrics) is not dict or not metrics:
            return None
        keys = tuple(metrics)
        values = plain_floats(metrics.values()) if weight is None else None
        declared: tuple[str | None, ...] | None = None
        weighted: tuple[bool, ...] | None = None
        weights: list[float] | None = None
        if values is None:
            taken = _take_apart(metrics, prefix, weight)
            if taken is None:
                return None
            values, declared, weighted, weights = taken
        reduce_key = tuple(reduce.items()) if type(reduce) is dict else reduce
        key = (keys, declared, weighted, prefix, step_metric, step_finished, step is None, reduce_key)
        try:
            plan = self._plans[key]
        except KeyError:
            plan = self._remember(key, self._build(key, reduce))
        except TypeError:  # something in the call that cannot be a key
            return None
        if plan is None:
            return None
        if plan.axis_index is None:
            return plan.template, step, time_us, None, values, weights
        return _on_axis(plan.template, plan.axis_index, step, time_us, list(values), weights)

    def _build(self, key: tuple[Any, ...], reduce: Any) -> _Plan | None:
        keys, declared, weighted, prefix, step_metric, step_finished, no_step, _ = key
        texts = (*keys, prefix, *(() if step_metric is None else (step_metric,)))
        if not all(type(text) is str and text_of(text) == text for text in texts):
            return None
        start = start_of(prefix)
        names = [start + key for key in keys]
        axis_index = _axis_index(keys, names, step_metric)
        reductions = [
            typed or lookup(reduce, key, name)
            for key, name, typed in zip(keys, names, declared or [None] * len(keys), strict=True)
        ]
        if self._rule is not None:
            reductions = [self._rule(name) if r is None else r for r, name in zip(reductions, names, strict=True)]
        has_weight = list(weighted or [False] * len(keys))
        if axis_index is not None:
            del names[axis_index], reductions[axis_index], has_weight[axis_index]
        if (
            not names
            or "histogram" in reductions
            or not all(r is None or (type(r) is str and text_of(r) == r) for r in reductions)
        ):
            return None
        shape = Shape(
            names=tuple(names),
            reductions=tuple(reductions),
            axis=None if axis_index is None else step_metric,
            closes_step=step_finished,
            has_step=not no_step,
            weighted=tuple(has_weight),
        )
        try:
            template = Template(shape, self._schema, self._schema_message)
        except ValueError:
            return None
        for reduction, name in zip(reductions, names, strict=True):
            self._skips.check_reduction(reduction, name)
        return _Plan(template, axis_index, template.size + _PLAN_BYTES)

    def _remember(self, key: Any, plan: _Plan | None) -> _Plan | None:
        self._plans[key] = plan
        self._size += _size(key, plan)
        while self._size > CACHE_BYTES:
            oldest = next(iter(self._plans))
            self._size -= _size(oldest, self._plans.pop(oldest))
            self.evictions += 1
        return plan


def _size(key: Any, plan: _Plan | None) -> int:
    return _NAME_BYTES * len(key[0]) + (plan.size if plan else 0)


def _axis_index(keys: tuple[str, ...], names: list[str], step_metric: str | None) -> int | None:
    """As the rule has it: a key of that name, else one whose name with the prefix it is."""
    if step_metric in keys:
        return keys.index(step_metric)
    return names.index(step_metric) if step_metric in names else None


def _take_apart(
    metrics: Mapping[str, Any], prefix: str, weight: Any
) -> tuple[list[float], tuple[str | None, ...], tuple[bool, ...], list[float] | None] | None:
    """The values of a call with weights or value types, their declared reductions, which have a weight, and these.

    Weights are 0.0 where a value has none. None for what is left to the rule, weights that it has to warn of too.
    """
    by_key = isinstance(weight, Mapping)
    start = start_of(prefix) if by_key else ""
    given, declared, weights = [], [], []
    weighted = []
    for key, value in metrics.items():
        kind = type(value)
        reduction = _ONE_NUMBER.get(kind)
        own = value.weight if kind is Mean else None
        if own is None and weight is not None:
            own = lookup(weight, key, start + key) if by_key else weight
        given.append(value if reduction is None else value.value)
        declared.append(reduction)
        weighted.append(own is not None)
        if own is not None:
            weights.append(own)
    numbers = plain_floats([*given, *weights])  # together, so that a device is asked once
    if numbers is None:
        return None
    values, found = list(numbers)[: len(given)], list(numbers)[len(given) :]
    if not found:
        return values, tuple(declared), tuple(weighted), None
    if min(found) < 0 or not sum(found) < math.inf:  # a NaN makes the sum NaN
        return None
    rest = iter(found)
    return values, tuple(declared), tuple(weighted), [next(rest) if has else 0.0 for has in weighted]


def _on_axis(
    template: Template,
    index: int,
    step: int | None,
    time_us: int,
    values: list[float],
    weights: list[float] | None,
) -> TemplateRows | None:
    """The value at `index` is the position of the others; None where it is none."""
    axis_value = values.pop(index)
    if not math.isfinite(axis_value):
        return None
    if weights is not None:
        del weights[index]
    return template, step, time_us, axis_value, values, weights
