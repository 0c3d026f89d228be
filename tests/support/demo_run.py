"""One real demo, carried out once for all tests that look at its results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_eventlog_cli.demo.perform import Places


@dataclass(frozen=True, slots=True)
class DemoRun:
    """What `rleventlog demo` left."""

    folder: Path
    status: int
    report: dict[str, Any]
    """What it printed with `--json`."""
    err: str

    @property
    def places(self) -> Places:
        """Where it put what."""
        return Places(self.folder)

    @property
    def path(self) -> Path:
        """The run."""
        return Path(self.report["run"])

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def run_uid(self) -> str:
        """Id of the run."""
        return str(self.report["run_uid"])

    @property
    def tracking_uri(self) -> str:
        """MLflow's database."""
        return self.places.tracking_uri

    @property
    def log_dir(self) -> Path:
        """TensorBoard's log folder."""
        return self.places.tensorboard
