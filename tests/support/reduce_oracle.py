"""The merge rules once more, slowly, in plain Python and numpy: what `rl_eventlog.reduce` is held against.

Written from the rules, not from the code: lists, loops, numpy's own functions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tests.support.rows import Writer

Row = dict[str, Any]
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def grouped(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> dict[Hashable, list[Row]]:
    groups: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def known(rows: Iterable[Mapping[str, Any]], writers: Sequence[Writer]) -> list[Row]:
    """Rows with what is known of their writers, and their position."""
    by_id = {w.writer: w for w in writers}
    found = []
    for row in rows:
        w = by_id[row["writer"]]
        extra = {"attempt": w.attempt, "rank_key": w.key, "incarnation": w.incarnation}
        if "axis" in row:
            position = row["axis_value"] if row["axis"] is not None else row["step"]
            extra["position"] = None if position is None else float(position)
        found.append({**row, **extra})
    return found


def lowest_first(row: Row) -> tuple[bool, int, str]:
    return (row["rank"] is None, row["rank"] or 0, row["rank_key"])


def view(
    rows: list[Row],
    writers: Sequence[Writer],
    by: Sequence[str],
    attempts: Literal["latest", "all"],
    repeats: Literal["last", "all"],
) -> list[Row]:
    def place(row: Row) -> tuple[Any, ...]:
        return tuple(row[column] for column in by)

    if attempts == "latest":
        rows = [
            row
            for row in rows
            if not any(
                w.role == row["role"]
                and w.attempt > row["attempt"]
                and w.resume_step is not None
                and row["step"] is not None
                and row["step"] >= w.resume_step
                for w in writers
            )
        ]
        kept = []
        for group in grouped(rows, lambda row: (row["role"], place(row))).values():
            newest = max(row["attempt"] for row in group)
            kept += [row for row in group if row["attempt"] == newest]
        rows = kept
    kept = []
    for group in grouped(rows, lambda row: (row["role"], row["attempt"], row["rank_key"], place(row))).values():
        latest = max(row["incarnation"] for row in group)
        alive = [row for row in group if row["incarnation"] == latest]
        kept += alive if repeats == "all" else [max(alive, key=lambda row: (row["writer"], row["seq"]))]
    return kept


def reduction_of(series: list[Row]) -> str:
    """The declaration that holds for all rows of one series."""
    declared = [row for row in series if row["reduction"] is not None]
    if not declared:
        return "mean"
    newest = max(row["attempt"] for row in declared)
    declared = [row for row in declared if row["attempt"] == newest]
    lowest = min(lowest_first(row) for row in declared)
    declared = [row for row in declared if lowest_first(row) == lowest]
    reduction: str = max(declared, key=lambda row: (row["incarnation"], row["writer"], row["seq"]))["reduction"]
    return reduction


def counted_once(rows: list[Row]) -> list[Row]:
    """The rows with a value, of each replica that of the lowest rank."""
    rows = [row for row in rows if row["value"] is not None]
    single = [row for row in rows if row["data_rank"] is None]
    replicas = grouped((row for row in rows if row["data_rank"] is not None), lambda row: row["data_rank"])
    return single + [min(group, key=lowest_first) for group in replicas.values()]


def weighted(rows: list[Row]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    pairs = [(row["value"], 1.0 if row["weight"] is None else row["weight"]) for row in counted_once(rows)]
    pairs = [(value, weight) for value, weight in pairs if math.isfinite(weight) and weight > 0]
    return np.array([value for value, _ in pairs]), np.array([weight for _, weight in pairs])


def merged_value(rows: list[Row], reduction: str) -> float | None:
    with np.errstate(all="ignore"):
        if reduction in ("mean", "std"):
            values, weights = weighted(rows)
            if not len(values):
                return None
            mean = np.average(values, weights=weights)
            return float(mean if reduction == "mean" else np.sqrt(np.average((values - mean) ** 2, weights=weights)))
        if reduction == "sum":
            once = [row["value"] for row in counted_once(rows)]
            return float(np.sum(once)) if once else None
        present = sorted((row for row in rows if row["value"] is not None), key=lowest_first)
        values = np.array([row["value"] for row in present])
        if not len(values):
            return None
        if reduction == "last":
            return float(values[0])
        if reduction in ("min", "max"):
            return float(np.min(values) if reduction == "min" else np.max(values))
        return quantile(values, QUANTILES[reduction])


def quantile(values: np.ndarray[Any, Any], q: float) -> float:
    """numpy's linear quantile, with infinities as values: numpy itself answers NaN where one takes part."""
    if np.isinf(values).any() and not np.isnan(values).any():
        place = q * (len(values) - 1)
        below, above = np.sort(values)[[math.floor(place), math.ceil(place)]]
        share = place - math.floor(place)
        return float(below if below == above else below * (1 - share) + above * share)
    return float(np.quantile(values, q, method="linear"))


def merge_metrics(rows: list[Row]) -> list[Row]:
    result = []
    for series in grouped(rows, lambda row: (row["role"], row["name"], row["axis"])).values():
        reduction = reduction_of(series)
        if reduction not in ("mean", "std", "sum", "last", "min", "max", *QUANTILES):
            continue
        for group in grouped(series, lambda row: (row["position"], row["attempt"])).values():
            steps = [row["step"] for row in group if row["step"] is not None]
            result.append(
                {name: group[0][name] for name in ("role", "name", "axis", "position", "attempt")}
                | {
                    "step": max(steps, default=None),
                    "time": max(row["time"] for row in group),
                    "value": merged_value(group, reduction),
                    "ranks": len({row["rank_key"] for row in group}),
                    "ranks_nan": sum(row["value"] is not None and math.isnan(row["value"]) for row in group),
                }
            )
    return result


def merge_timings(rows: list[Row]) -> list[Row]:
    result = []
    for group in grouped(rows, lambda row: (row["role"], row["name"], row["step"], row["attempt"])).values():
        ranks = grouped(group, lambda row: row["rank_key"])
        seconds = {key: float(np.sum([row["duration_seconds"] for row in spans])) for key, spans in ranks.items()}
        values = np.array(list(seconds.values()))
        slowest = [spans[0]["rank"] for key, spans in ranks.items() if seconds[key] == values.max()]
        result.append(
            {name: group[0][name] for name in ("role", "name", "step", "attempt")}
            | {
                "time": max(row["time"] for row in group),
                "duration_seconds": float(values.max()),
                "mean_seconds": float(values.mean()),
                "p95_seconds": float(np.quantile(values, 0.95)),
                "imbalance": float(values.max() / values.mean()) if values.mean() else None,
                "slowest_rank": min((rank for rank in slowest if rank is not None), default=None),
                "count": sum(row["count"] for row in group),
                "ranks": len(ranks),
            }
        )
    return result


def _steps(rows: list[Row]) -> dict[tuple[Any, ...], dict[str, dict[str, float]]]:
    """(role, attempt, step) -> name -> rank -> seconds; timings without a step are left out."""
    steps: dict[tuple[Any, ...], dict[str, dict[str, float]]] = {}
    for row in rows:
        if row["step"] is not None:
            names = steps.setdefault((row["role"], row["attempt"], row["step"]), {})
            ranks = names.setdefault(row["name"], {})
            ranks[row["rank_key"]] = ranks.get(row["rank_key"], 0.0) + row["duration_seconds"]
    return steps


def stragglers(rows: list[Row]) -> list[Row]:
    first = {(row["role"], row["attempt"], row["rank_key"]): row for row in rows}
    compared: dict[tuple[Any, ...], list[tuple[float, float, bool]]] = defaultdict(list)
    for (role, attempt, _), names in _steps(rows).items():
        for name, ranks in names.items():
            if len(ranks) < 2:
                continue
            typical = sorted(ranks.values())[(len(ranks) - 1) // 2]
            by_order = sorted(ranks, key=lambda key: lowest_first(first[role, attempt, key]))
            slowest = max(by_order, key=ranks.__getitem__)  # of equals the first
            for key, seconds in ranks.items():
                at_fault = key == slowest and seconds > typical
                row = first[role, attempt, key]
                compared[role, name, key, row["rank"], row["node"]].append((seconds, typical, at_fault))
    return [
        {
            **dict(zip(("role", "name", "rank", "node"), (role, name, rank, node), strict=True)),
            "steps": len(steps),
            "slowest_steps": sum(fault for *_, fault in steps),
            "slowest_share": sum(fault for *_, fault in steps) / len(steps),
            "lost_seconds": sum(seconds - typical for seconds, typical, fault in steps if fault),
            "worst_seconds": max((seconds - typical for seconds, typical, fault in steps if fault), default=0.0),
            "median_ratio": float(np.median(ratios)) if ratios else None,
            "duration_seconds": sum(seconds for seconds, *_ in steps),
        }
        for (role, name, _, rank, node), steps in compared.items()
        for ratios in [[seconds / typical for seconds, typical, _ in steps if typical > 0]]
    ]


def phases(rows: list[Row], whole: str | None) -> list[Row]:
    found = []
    for (role, attempt, step), names in _steps(rows).items():
        count = len({key for ranks in names.values() for key in ranks})
        seconds = {name: sum(ranks.values()) / count for name, ranks in names.items()}
        lineage = {name: _above(name, names, whole) for name in names}
        parts: dict[str, float] = defaultdict(float)
        for name, above in lineage.items():
            if above:
                parts[above[-1]] += seconds[name]
        total = sum(seconds[n] for n in names if not lineage[n]) if whole is None else seconds.get(whole)
        for name, ranks in names.items():
            own = seconds[name] - parts[name]
            found.append(
                {"role": role, "attempt": attempt, "step": step, "name": name}
                | {"parent": lineage[name][-1] if lineage[name] else None, "depth": len(lineage[name])}
                | {"seconds": seconds[name], "share": seconds[name] / total if total else None}
                | {"self_seconds": own, "self_share": own / total if total else None, "ranks": len(ranks)}
                | {"_total": total}
            )
    return found


def _above(name: str, names: Iterable[str], whole: str | None) -> list[str]:
    """The labels above one, from the top."""
    if name == whole:
        return []
    above = sorted((other for other in names if name.startswith(f"{other}/")), key=len)
    if whole is None or whole not in names:
        return above
    return above[above.index(whole) :] if whole in above else [whole, *above]


def phases_over_steps(found: list[Row]) -> list[Row]:
    result = []
    for role, of_role in grouped(found, lambda row: row["role"]).items():
        steps = grouped(of_role, lambda row: (row["attempt"], row["step"]))
        total = sum(group[0]["_total"] for group in steps.values() if group[0]["_total"] is not None)
        for name, group in grouped(of_role, lambda row: row["name"]).items():
            timed = [row for row in group if row["_total"] is not None]
            seconds = [row["seconds"] for row in group]
            depth, parent = max((row["depth"], row["parent"] or "") for row in group)
            result.append(
                {"role": role, "name": name, "steps": len(group), "parent": parent or None, "depth": depth}
                | {"mean_seconds": float(np.mean(seconds)), "median_seconds": float(np.median(seconds))}
                | {"seconds": sum(seconds), "self_seconds": sum(row["self_seconds"] for row in group)}
                | {"share": sum(row["seconds"] for row in timed) / total if total and timed else None}
                | {"self_share": sum(row["self_seconds"] for row in timed) / total if total and timed else None}
            )
    return result
