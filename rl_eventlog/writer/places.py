"""Where the segments of a writer lie: in the run's folder, else under its fallback folder.

The fallback folder has the layout of a run and its own copy of the writer's document, so that it can be
read, and merged, by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rl_eventlog.durable import make_folder, write_durably
from rl_eventlog.layout import RunLayout
from rl_eventlog.types import Identity


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of one writer."""

    home: RunLayout
    identity: Identity
    document: bytes = b""
    """The writer's document, as it lies in the run's folder."""
    fallback: RunLayout | None = None

    def shard(self, table: str) -> Path:
        """Folder in the run for the segments of a table."""
        return self.home.shard(table, self.identity.node)

    def is_home(self, segment: Path) -> bool:
        """Whether a segment lies in the run's folder."""
        return self.fallback is None or not segment.is_relative_to(self.fallback.path)

    def enter_fallback(self, table: str) -> Path:
        """Folder for the segments of a table while the run's folder takes none; made, with the writer's document.

        Raises:
            OSError: there is no fallback folder, or it cannot be made or written either.
        """
        if self.fallback is None:
            raise FileNotFoundError("no fallback folder is set")
        document = self.fallback.writer(self.identity.writer)
        if not document.exists():
            make_folder(document.parent)
            write_durably(document, self.document)
        folder = self.fallback.shard(table, self.identity.node)
        make_folder(folder)
        return folder
