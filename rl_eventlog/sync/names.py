"""Names of series at targets.

- Roles main, trainer and controller have no prefix, others ``<role>/``; timings are ``timing/<name>``.
- No two series ever share a name at a target, which would mix their points: who comes later takes its
  role as prefix, or says its axis behind the name.
- A name once given stays: what differs from `default_name` is recorded with the commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import NamedTuple

UNPREFIXED_ROLES = ("main", "trainer", "controller")


class SeriesKey(NamedTuple):
    """One series in the log: the role's, of one table, on one axis."""

    table: str
    """`metrics` or `timings`."""
    role: str
    name: str
    axis: str | None


def _base(key: SeriesKey) -> str:
    return f"timing/{key.name}" if key.table == "timings" else key.name


def _with_role(key: SeriesKey) -> str:
    base = _base(key)
    return base if base.startswith(f"{key.role}/") else f"{key.role}/{base}"


def default_name(key: SeriesKey) -> str:
    """The name a series has at a target unless another series has it already."""
    return _base(key) if key.role in UNPREFIXED_ROLES else _with_role(key)


def _candidates(key: SeriesKey) -> Iterable[str]:
    yield default_name(key)
    if key.axis is not None:
        yield f"{default_name(key)}/by_{key.axis}"
    yield f"{key.role}/{_base(key)}"
    yield from (f"{key.role}/{_base(key)}~{n}" for n in count(2))


def assign(
    new: Iterable[SeriesKey], committed: Iterable[SeriesKey], renamed: Mapping[SeriesKey, str]
) -> dict[SeriesKey, str]:
    """Name the series of a commit.

    Args:
        new: series to send; those committed before keep their names.
        committed: series the target holds.
        renamed: names given before that are not the default one.

    Returns:
        The name of every series in `new`.
    """
    names = {key: renamed.get(key) or default_name(key) for key in committed} | dict(renamed)
    taken = set(names.values())
    wanted = list(new)
    for key in sorted(set(wanted) - names.keys(), key=_precedence):
        names[key] = next(name for name in _candidates(key) if name not in taken)
        taken.add(names[key])
    return {key: names[key] for key in wanted}


def _precedence(key: SeriesKey) -> tuple[int, str, str, str, str]:
    """Of one commit's series main's come first, then trainer's, controller's and the others'."""
    order = UNPREFIXED_ROLES.index(key.role) if key.role in UNPREFIXED_ROLES else len(UNPREFIXED_ROLES)
    return order, key.role, key.table, key.name, key.axis or ""
