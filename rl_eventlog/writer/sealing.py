"""What becomes of the finished segments of a writer: sealed, and their open forms removed after a time.

- A segment whose sealed form is not whole and read back stays open, a valid end.
- Sealing brings segments from the fallback folder home.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from rl_eventlog.durable import fsync_file, fsync_folder, make_folder
from rl_eventlog.layout import SegmentName
from rl_eventlog.types import Span, Spans

from .places import Places
from .table import Rotated

logger = logging.getLogger("rl_eventlog")


class Sealing:
    """The finished segments of one writer. `add` may be called from anywhere, also under a table's lock."""

    def __init__(self, places: Places, grace_seconds: float, lost: Callable[[str, int, Exception], None]) -> None:
        """Start with none.

        Args:
            places: where sealed files go.
            grace_seconds: how long an open form stays beside its sealed file.
            lost: told of rows whose file is gone: their table, number, and why.
        """
        self._places = places
        self._grace_seconds = grace_seconds
        self._lost = lost
        self._to_seal: deque[Rotated] = deque()
        self._unsealed: list[Rotated] = []  # their seal failed
        self._sealed: deque[tuple[float, Path]] = deque()
        self._on_disk: set[Path] = set()  # of those that are not sealed
        self._untrusted: dict[Path, OSError] = {}  # their fsync failed: the next one would say all is well
        self._lock = threading.Lock()

    def add(self, rotated: Rotated) -> None:
        """Take a segment that got its last row."""
        if rotated.on_disk:
            self._on_disk.add(rotated.path)
        self._to_seal.append(rotated)

    def distrust(self, path: Path, error: OSError) -> None:
        """Hear that an fsync of a segment failed: only its seal can put its rows on the disk."""
        self._untrusted[path] = error

    def fsync(self, *, again: bool) -> None:
        """Put the rows on the disk, in the open forms or by sealing them now.

        Args:
            again: also seal once more what could not be sealed.

        Raises:
            OSError: the disk refused both.
        """
        for rotated in (*self._to_seal, *self._unsealed):
            if rotated.path in self._on_disk or rotated.path in self._untrusted:
                continue
            try:
                fsync_file(rotated.path)
                fsync_folder(rotated.path.parent)  # it may have been rotated before its first fsync
                self._on_disk.add(rotated.path)
            except FileNotFoundError:  # sealed and removed meanwhile
                continue
            except OSError as error:
                self.distrust(rotated.path, error)
        if self._untrusted:
            self.seal(again=again)
        if failed := list(self._untrusted.values()):
            raise failed[0]

    def seal(self, *, again: bool = False) -> None:
        """Seal what is finished, and remove open forms whose grace time is over.

        Args:
            again: try those whose seal failed once more.
        """
        with self._lock:
            if again:
                self._to_seal.extend(self._unsealed)
                self._unsealed.clear()
            while self._to_seal:
                rotated = self._to_seal[0]
                if self._seal(rotated):
                    self._sealed.append((time.monotonic(), rotated.path))
                    self._on_disk.discard(rotated.path)
                    self._untrusted.pop(rotated.path, None)
                else:
                    self._unsealed.append(rotated)
                self._to_seal.popleft()
                pa.default_memory_pool().release_unused()  # a seal needs a few times its segment, a training all else
            self._remove(self._grace_seconds)

    def remove_open_forms(self) -> None:
        """Remove those of sealed segments without waiting for the grace time."""
        with self._lock:
            self._remove(0.0)

    def left_open(self) -> list[Path]:
        """Segments that are not sealed."""
        return [rotated.path for rotated in (*self._unsealed, *self._to_seal)]

    def _remove(self, grace_seconds: float) -> None:
        while self._sealed and time.monotonic() - self._sealed[0][0] >= grace_seconds:
            with suppress(OSError):
                self._sealed[0][1].unlink()
            self._sealed.popleft()

    def _seal(self, rotated: Rotated) -> bool:
        # Here, not above: it loads pyarrow.parquet, which the training's import should not pay for.
        from rl_eventlog.segment.seal import seal_open

        home = self._places.shard(rotated.table)
        try:
            make_folder(home)
            sealed = seal_open(rotated.path, rotated.number, rotated.table, home)
        except FileNotFoundError as error:
            if not self._is_sealed(rotated):  # by someone else, who then removed the open form
                self._lost(rotated.table, len(rotated.span), error)
            return True
        except Exception as error:  # noqa: BLE001 -- one that cannot be sealed must not stop the others
            logger.warning("rl-eventlog leaves %s open: %s", rotated.path, error)
            return False
        names = [SegmentName.parse(path.name) for path in sealed]
        if [(name.first, name.last) for name in names if name] != [(rotated.span.first, rotated.span.last)]:
            logger.warning("rl-eventlog keeps %s: it is damaged, what is whole in it was sealed", rotated.path)
            return False
        return True

    def _is_sealed(self, rotated: Rotated) -> bool:
        covered = Spans()
        for path in self._places.shard(rotated.table).glob(f"{rotated.path.stem}.*.parquet"):
            if (name := SegmentName.parse(path.name)) and name.first is not None and name.last is not None:
                covered.add(Span(name.first, name.last))
        return not covered.missing_from(rotated.span)
