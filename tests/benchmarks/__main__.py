"""`make bench`: measure everything and write RESULTS.md beside this file.

`python -m tests.benchmarks PART ...` measures some parts and only prints.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from .big_rows import big_rows
from .imports import imports
from .key_sets import key_sets
from .log_call import log_calls
from .memory import memory
from .paced import paced
from .report import Section, machine_of, render
from .scale import scale
from .size_and_seal import size_and_seal

RESULTS = Path(__file__).with_name("RESULTS.md")
PARTS: dict[str, Callable[[Path], Section]] = {
    "calls": log_calls,
    "paced": paced,
    "keysets": key_sets,
    "bigrows": big_rows,
    "sizes": size_and_seal,
    "memory": memory,
    "imports": imports,
    "scale": scale,
}


def main() -> None:
    """Measure and write; nothing else should run on the machine."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of: {', '.join(PARTS)}; all where none is named")
    chosen = parser.parse_args().parts
    if unknown := sorted({*chosen} - {*PARTS}):
        parser.error(f"no such part: {', '.join(unknown)}")
    machine = machine_of(Path.cwd())
    sections = []
    for name in chosen or PARTS:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:  # on the checkout's disk
            sections.append(PARTS[name](Path(folder)))
        print("\n".join(sections[-1].lines), end="\n\n", flush=True)
    text = render(sections, machine)
    if chosen:
        print(text)
    else:
        RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
