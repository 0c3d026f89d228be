"""Merging metrics over the ranks of a torch.distributed job, on every rank, as reading would merge what they log.

- One packed all_gather a call, whatever the keys and reductions. Only where some rank has a key, a
  reduction or a longer list than it ever had, a second one follows, which agrees on them.
- Every rank gets the same digits, those of `merge_ranks`: values are added up in rank order.
- A collective: each rank of the group calls it equally often, with whatever keys it has. No value
  makes it raise, so that no rank is left waiting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from rl_eventlog.errors import MissingDependencyError, OptionError

from .merge import merge_values
from .values import RankValues, Scalar, values_of

if TYPE_CHECKING:
    import torch

_HEAD = 2
"""Numbers before the values: whether the layout does not fit, and the data rank."""
_MAX_KEYS = 4096
"""A layout that would grow beyond it begins anew: keys may have numbers in them."""
_ABSENT, _NULL, _VALUE, _WEIGHTED = 0.0, 1.0, 2.0, 3.0


def reduce_across_ranks(
    metrics: Mapping[str, Any],
    *,
    reduce: str | Mapping[str, str] | None = None,
    weight: float | Mapping[str, float] | None = None,
    group: Any = None,
    data_rank: int | None = None,
    device: torch.device | str | None = None,
) -> dict[str, float | None]:
    """Merge the metrics of all ranks; a collective.

    Args:
        metrics: numbers, tensors of one element, lists, value types, and mappings of these. Ranks may
            have different keys.
        reduce: reduction by key or glob, or one for all, as in `log_metrics`; `mean` where none is
            given. The value types (`Mean`, `Sum`, ...) declare their own.
        weight: weight by key or glob, or one for all. `Mean` has its own.
        group: process group; None is all ranks. Where ranks of a tensor-parallel group have the same
            values, this is the data-parallel group, or else `data_rank` is given.
        data_rank: of several ranks with the same one the lowest counts in `mean`, `sum`, `std` and lists.
        device: of the exchanged tensor; None is the CPU with gloo, the current CUDA device with NCCL.

    Returns:
        On every rank the same: see `merge_ranks`. Without an initialised process group the values of
        this process, merged as those of one rank.

    Raises:
        MissingDependencyError: torch is not installed.
        OptionError: this process is not in the group.
    """
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        raise MissingDependencyError("torch", "torch") from error

    values = values_of(metrics, reduce, weight)
    if not (dist.is_available() and dist.is_initialized()):
        return merge_values([values], [data_rank])
    members = dist.group.WORLD if group is None else group
    if dist.get_rank(members) < 0:
        raise OptionError("group: this process is not in it")
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(members) == "nccl" else "cpu"
    agreed = _agreed.setdefault(members, _Agreed([_Layout()] * dist.get_world_size(members)))
    layout = agreed.layouts[dist.get_rank(members)]
    fits = layout.fits(values)
    packed = [float(not fits), math.nan if data_rank is None else float(data_rank)]
    packed += layout.pack(values) if fits else []
    rows = _gather(packed, agreed.size, len(agreed.layouts), members, device)
    if any(row[0] for row in rows):
        layouts: list[Any] = [None] * len(agreed.layouts)
        dist.all_gather_object(layouts, layout.grown(values), group=members)
        agreed.layouts = layouts
        packed[_HEAD:] = layouts[dist.get_rank(members)].pack(values)
        rows = _gather(packed, agreed.size, len(layouts), members, device)
    ranks = [layout.unpack(row[_HEAD:]) for layout, row in zip(agreed.layouts, rows, strict=True)]
    return merge_values(ranks, [None if math.isnan(row[1]) else int(row[1]) for row in rows])


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a rank's values lie in what it sends; every rank knows those of all."""

    reductions: dict[str, str | None] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    """Of the lists: the longest that has room."""

    @property
    def size(self) -> int:
        return 3 * len(self.reductions) + sum(1 + length for length in self.lengths.values())

    def fits(self, values: RankValues) -> bool:
        return all(
            key in self.reductions and self.reductions[key] == one.reduction for key, one in values.scalars.items()
        ) and all(len(given) <= self.lengths.get(key, -1) for key, given in values.many.items())

    def grown(self, values: RankValues) -> _Layout:
        """With room for these values too, of lists for twice as many at most."""
        reductions = {key: one.reduction for key, one in values.scalars.items()}
        lengths = {key: 1 << len(given).bit_length() for key, given in values.many.items()}
        both = _Layout(
            self.reductions | reductions,
            self.lengths | {key: max(length, self.lengths.get(key, 0)) for key, length in lengths.items()},
        )
        return both if len(both.reductions) + len(both.lengths) <= _MAX_KEYS else _Layout(reductions, lengths)

    def pack(self, values: RankValues) -> list[float]:
        packed: list[float] = []
        for key in self.reductions:
            packed += _pack(values.scalars.get(key))
        for key, length in self.lengths.items():
            given = values.many.get(key)
            padding = length - len(given or ())
            packed += [-1.0 if given is None else float(len(given)), *(given or ()), *[0.0] * padding]
        return packed

    def unpack(self, packed: Sequence[float]) -> RankValues:
        values = RankValues()
        place = 0
        for key, reduction in self.reductions.items():
            state, value, weight = packed[place : place + 3]
            place += 3
            if state != _ABSENT:
                weighted = weight if state == _WEIGHTED else None
                values.scalars[key] = Scalar(None if state == _NULL else value, weighted, reduction)
        for key, length in self.lengths.items():
            count = int(packed[place])
            if count >= 0:
                values.many[key] = list(packed[place + 1 : place + 1 + count])
            place += 1 + length
        return values


def _pack(one: Scalar | None) -> tuple[float, float, float]:
    if one is None:
        return _ABSENT, 0.0, 0.0
    if one.value is None:
        return _NULL, 0.0, 0.0
    return (_VALUE, one.value, 0.0) if one.weight is None else (_WEIGHTED, one.value, one.weight)


@dataclass(slots=True)
class _Agreed:
    """The layouts of a group's ranks as of the last call: the same on each, since all take part in every call."""

    layouts: list[_Layout]

    @property
    def size(self) -> int:
        return _HEAD + max(layout.size for layout in self.layouts)


_agreed: WeakKeyDictionary[Any, _Agreed] = WeakKeyDictionary()


def _gather(packed: list[float], size: int, ranks: int, group: Any, device: torch.device | str) -> list[list[float]]:
    """What each rank of the group packed, in rank order: `[ranks, size]`."""
    import torch
    import torch.distributed as dist

    mine = torch.tensor(packed + [0.0] * (size - len(packed)), dtype=torch.float64).to(device)
    gathered = torch.empty(ranks * size, dtype=torch.float64, device=device)
    dist.all_gather_into_tensor(gathered, mine, group=group)
    rows: list[list[float]] = gathered.view(ranks, size).tolist()
    return rows
