"""Small runs for tests of the command line, written by the real writer in this process."""

from __future__ import annotations

from pathlib import Path

from rl_eventlog import EventWriter

HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]markup[/red]\r\u202egnp.exe\x9b31m"
"""Clears the screen, sets a title, colours, rewrites the line and turns the direction, if anything lets it."""


def two_ranks(root: Path, name: str = "small", *, steps: int = 4) -> Path:
    """A finished run of two trainers: losses 1, 1/2, ... on rank 0 and twice that on rank 1."""
    writers = [
        EventWriter.open(
            root,
            run=name,
            project="tests",
            group="pair",
            tags=["quick"],
            role="trainer",
            rank=rank,
            world_size=2,
            data_rank=rank,
            launch_id=f"launch-of-{name}",
            capture_diff=False,
        )
        for rank in (0, 1)
    ]
    writers[0].log_hyperparams({"algorithm": {"lr": 0.5}, "model": "tiny"})
    for step in range(steps):
        for rank, log in enumerate(writers):
            metrics = {"loss": (rank + 1) / (step + 1), "tokens": 10}
            log.log_metrics(metrics, step=step, prefix="train", reduce={"tokens": "sum"}, step_finished=True)
            log.log_timing("training", 0.25 * (rank + 1), step=step)
    writers[0].mark("checkpoint", step=steps - 1)
    for log in writers:
        log.close()
    return writers[0].path


def one_rank(root: Path, name: str, metrics: dict[str, float], *, step: int = 0) -> Path:
    """A finished run of one process and one log call."""
    with EventWriter.open(root, run=name, rank=0, launch_id=f"launch-of-{name}", capture_diff=False) as log:
        log.log_metrics(metrics, step=step, step_finished=True)
    return log.path


def of_newer_version(root: Path, name: str) -> Path:
    """A run that says it was written by version 2.0 of the format."""
    path = one_rank(root, name, {"loss": 1.0})
    (document,) = (file for file in (path / "writers").glob("*.json") if not file.name.endswith(".end.json"))
    text = document.read_text()
    assert '"format_version": "1.0"' in text
    document.write_text(text.replace('"format_version": "1.0"', '"format_version": "2.0"'))
    return path


def damage(path: Path) -> None:
    """Flip the bytes of a file from its middle to its end."""
    data = bytearray(path.read_bytes())
    for index in range(len(data) // 2, len(data)):
        data[index] ^= 0xFF
    path.write_bytes(data)


def damage_a_page(path: Path) -> None:
    """Flip bytes in a sealed file's first page: size and footer stay as they were."""
    data = bytearray(path.read_bytes())
    data[60:200] = bytes(byte ^ 0xFF for byte in data[60:200])
    path.write_bytes(data)
