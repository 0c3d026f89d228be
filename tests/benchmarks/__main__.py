"""`make bench`: measure everything and write RESULTS.md beside this file."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from .log_call import beside_others, by_number_of_keys, rotating_key_sets
from .measure import Times
from .size_and_seal import sizes

RESULTS = Path(__file__).with_name("RESULTS.md")
_PACKAGES = ("pyarrow", "polars", "wandb", "mlflow", "tensorboard", "torch")


def main() -> None:
    """Measure and write; nothing else should run on the machine."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        text = "\n".join(
            [
                "# Benchmark results",
                "",
                "Written by `make bench`. Ratios are within one run; absolute figures are this machine's.",
                "",
                (
                    f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {_processor()}, Linux {platform.release()}, "
                    f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} at the start."
                ),
                ", ".join(f"{package} {version(package)}" for package in _PACKAGES) + ".",
                "",
                *_log_calls(folder),
                *_sizes(folder),
                *_imports(),
            ]
        )
    RESULTS.write_text(text + "\n", encoding="utf-8")
    print(text)


def _log_calls(folder: Path) -> list[str]:
    (folder / "others").mkdir()
    others = beside_others(folder / "others")
    base = others["rl-eventlog"].median
    lines = ["## One call with 20 metrics", "", _row("", "median us", "p99", "p99.9", "highest", "times ours")]
    lines.append(_row("---", *["---:"] * 5))
    lines += [_row(name, *_figures(times), f"{times.median / base:.1f}") for name, times in others.items()]
    (folder / "keys").mkdir()
    lines += ["", "## Our call by number of metrics", "", _row("metrics", "median us", "p99", "p99.9", "highest")]
    lines.append(_row(*["---:"] * 5))
    lines += [_row(str(count), *_figures(times)) for count, times in by_number_of_keys(folder / "keys").items()]
    rotating = rotating_key_sets(folder)
    lines.append(_row("20, of 1,000 key sets in rotation", *_figures(rotating)))
    return [*lines, ""]


def _sizes(folder: Path) -> list[str]:
    lines = ["## Size and sealing", "", _row("values", "bytes a point open", "sealed", "points sealed a second")]
    lines.append(_row("---", *["---:"] * 3))
    lines += [
        _row(size.values, f"{size.open_bytes:.1f}", f"{size.sealed_bytes:.2f}", f"{size.seal_points:,.0f}")
        for size in sizes(folder)
    ]
    return [*lines, ""]


def _imports() -> list[str]:
    ours, arrow = (min(_import_seconds(name) for _ in range(7)) for name in ("rl_eventlog", "pyarrow"))
    return [
        "## Import",
        "",
        f"`import rl_eventlog` and its writer: {ours * 1000:.0f} ms, {ours / arrow:.2f} times `import pyarrow`.",
    ]


def _import_seconds(name: str) -> float:
    code = f"import time; t = time.perf_counter(); import {name}"
    code += "; rl_eventlog.EventWriter" if name == "rl_eventlog" else ""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(time.perf_counter() - t)"], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def _figures(times: Times) -> tuple[str, str, str, str]:
    return f"{times.median:.1f}", f"{times.p99:.0f}", f"{times.p999:.0f}", f"{times.highest:.0f}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
