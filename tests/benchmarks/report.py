"""What the benchmarks say: sections with tables, and targets that were met or not."""

from __future__ import annotations

import os
import platform
import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("pyarrow", "numpy", "polars", "torch", "wandb", "mlflow", "tensorboard", "trackio", "orjson")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target."""

    target: str
    measured: str
    met: bool


@dataclass(frozen=True, slots=True)
class Section:
    """What one part measured."""

    title: str
    lines: Sequence[str]
    """Markdown."""
    verdicts: Sequence[Verdict] = ()


def at_most(what: str, measured: float, limit: float, unit: str = "", digits: int = 1) -> Verdict:
    """A target that is an upper limit."""
    space = " " if unit else ""
    return Verdict(f"{what}: at most {limit:g}{space}{unit}", f"{measured:.{digits}f}{space}{unit}", measured <= limit)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table: the first column is text, the others are numbers."""
    aligned = ["---", *["---:"] * (len(heads) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (heads, aligned, *rows)]


def prose(*lines: str) -> list[str]:
    """A paragraph."""
    return textwrap.wrap(" ".join(lines), 120, break_long_words=False, break_on_hyphens=False)


def render(sections: Sequence[Section], machine: str) -> str:
    """The whole document."""
    lines = [
        "# Benchmark results",
        "",
        "Written by `make bench`, never by hand. Times of peers were measured in turns with ours in the same run;",
        "absolute figures are this machine's.",
        "",
        machine,
        "",
    ]
    if verdicts := [verdict for section in sections for verdict in section.verdicts]:
        rows = [(v.target, v.measured, "yes" if v.met else "**no**") for v in verdicts]
        lines += ["## Targets", "", *table(["target", "measured", "met"], rows), ""]
    for section in sections:
        lines += [f"## {section.title}", "", *section.lines, ""]
    return "\n".join(lines).rstrip() + "\n"


def machine_of(folder: Path) -> str:
    """Date, machine, versions; `folder` lies on the disk that is measured."""
    facts = [
        time.strftime("%Y-%m-%d"),
        f"{os.cpu_count()} cores, {_processor()}",
        f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB of memory",
        f"Linux {platform.release()}",
        f"{_file_system(folder)} on disk",
        f"Python {platform.python_version()}",
        f"load {os.getloadavg()[0]:.1f} at the start",
    ]
    return ", ".join(facts) + ".\n" + ", ".join(f"{package} {version(package)}" for package in _PACKAGES) + "."


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    place = folder.resolve()
    found = {place_of: kind for _, place_of, kind, *_ in mounts if place.is_relative_to(place_of)}
    return found[max(found, key=len)]
