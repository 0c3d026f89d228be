"""The golden runs as files: not a byte of them changes, whoever reads them, and they say nothing of who made them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rl_eventlog import Run
from rl_eventlog.sinks.base import Sink
from rl_eventlog.sinks.mlflow import MLflowSink
from rl_eventlog.sinks.tensorboard import TensorboardSink
from rl_eventlog.sinks.wandb import WandbSink
from rl_eventlog.sync import SyncOptions, SyncReport, replay
from tests.support.golden_files import EXPECTED, FOLDER, NAMES, GoldenRun, fields, read_golden

MEBIBYTE = 1 << 20
KINDS: dict[str, type | tuple[type, ...]] = {
    "utf8": str,
    "int64": int,
    "float64": (int, float),
    "bool": bool,
    "json": object,
}
PATH_OF_A_MACHINE = re.compile(r"/(home|root|tmp|usr|var|opt|work|mnt|Users|__w|pytorch)/|(site|dist)-packages")

every_run = pytest.mark.parametrize("name", NAMES)


@every_run
def test_no_file_was_changed_added_or_removed(name: str) -> None:
    assert digests(FOLDER / name) == EXPECTED[name]["files"]


def dry_run(path: Path, folder: Path, kind: str) -> SyncReport:
    """Ask what a sync would send. No step is held back: whether a rank lives is a question of clocks."""
    sinks: dict[str, Sink] = {
        "mlflow": MLflowSink(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}"),
        "tensorboard": TensorboardSink(log_dir=folder / "tensorboard"),
        "wandb": WandbSink(offline=True, folder=folder / "wandb"),
    }
    return replay(path, sinks[kind], SyncOptions(dry_run=True, final=True, hold="none"))


@every_run
@pytest.mark.parametrize("kind", ["mlflow", "tensorboard", "wandb"])
def test_a_dry_sync_finds_every_point_and_no_problem(tmp_path: Path, name: str, kind: str) -> None:
    before = snapshot(FOLDER / name)
    report = dry_run(FOLDER / name, tmp_path, kind)
    points = EXPECTED[name]["points"]
    validation = Run(FOLDER / name).samples(role="controller").collect()
    assert report.points == points["metrics"] + points["timings"]
    assert report.params == points["hparams"]
    assert report.samples == validation.height
    assert report.samples > 0
    assert (report.corrections, report.held, report.hidden, report.unplaced) == (0, (), 0, 0)
    assert (report.gaps, report.damaged, report.warnings) == ((), (), ())
    assert snapshot(FOLDER / name) == before
    assert not list(tmp_path.iterdir())


@every_run
def test_reading_changes_nothing_and_a_copy_without_write_permission_is_read(tmp_path: Path, name: str) -> None:
    copy = tmp_path / name
    shutil.copytree(FOLDER / name, copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    before = [snapshot(path) for path in (FOLDER / name, copy)]
    frames = []
    for path in (FOLDER / name, copy):
        run = Run(path, check="digest")
        assert run.info.gaps == ()
        metrics = run.metrics().sort("role", "name", "position").collect()
        samples = run.samples().sort("writer", "seq").collect()
        frames.append((metrics, samples, run.timings().collect().height, run.warnings().height))
    assert [snapshot(path) for path in (FOLDER / name, copy)] == before
    assert frames[0][0].equals(frames[1][0])
    assert frames[0][1].equals(frames[1][1])
    assert frames[0][2:] == frames[1][2:]
    for path in (copy, *copy.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IWUSR)


def test_the_script_leaves_runs_alone_that_are_there(tmp_path: Path) -> None:
    copy = tmp_path / "sample_runs"
    shutil.copytree(FOLDER, copy)
    before = snapshot(copy)
    command = [sys.executable, str(FOLDER / "make.py"), "--into", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("is there and stays as it is") == len(NAMES)
    assert snapshot(copy) == before


def snapshot(folder: Path) -> dict[str, tuple[int, str]]:
    """Times of change of files and folders, and digests of files."""
    found = digests(folder)
    paths = [folder, *folder.rglob("*")]
    return {
        path.relative_to(folder).as_posix(): (
            path.stat().st_mtime_ns,
            found.get(path.relative_to(folder).as_posix(), ""),
        )
        for path in paths
    }


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_together_they_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 3 * MEBIBYTE


def texts_of(path: Path) -> Iterator[str]:
    """What a file says, without compression."""
    if path.suffix == ".parquet":
        table = pq.ParquetFile(path).read()
        yield json.dumps(table.to_pylist(), default=str)
        yield str(table.schema.metadata)
    else:
        yield path.read_bytes().decode("latin-1")


@every_run
def test_no_file_names_a_path_or_a_person_of_the_machine_that_made_it(name: str) -> None:
    for path in (FOLDER / name).rglob("*"):
        if path.is_file():
            for text in texts_of(path):
                found = PATH_OF_A_MACHINE.search(text)
                assert found is None, f"{path} holds {found}"


@every_run
def test_documents_have_the_fields_that_the_specification_gives_them(name: str) -> None:
    run = read_golden(FOLDER / name)
    for document, found in {"writer": run.writers, "writer_end": run.ends, "writer_beat": run.beats}.items():
        for content in found.values():
            assert_as_specified(document, content)
    assert_as_specified("run", json.loads((FOLDER / name / "run.json").read_text()))
    for path in (FOLDER / name / "launches").iterdir():
        content = json.loads(path.read_text())
        assert_as_specified("launch", content)
        assert path.stem == hashlib.sha256(content["launch"].encode()).hexdigest()[:16]


def assert_as_specified(document: str, content: dict[str, Any]) -> None:
    specified = fields(document)
    assert content.keys() <= specified.keys()
    absent = specified.keys() - content.keys()  # means null
    assert all(specified[key]["nullable"] for key in absent), f"{document}: {absent}"
    for key, value in content.items():
        kind = specified[key]["type"]
        if value is None:
            assert specified[key]["nullable"], f"{document}: {key}"
        elif isinstance(kind, dict):
            assert isinstance(value, list)
            assert all(isinstance(part, KINDS[kind["list"]]) for part in value)
        else:
            assert isinstance(value, KINDS[kind]), f"{document}: {key}"


@every_run
def test_provenance_is_complete_and_harmless(name: str) -> None:
    run: GoldenRun = read_golden(FOLDER / name)
    carried = [document["provenance"] for document in run.writers.values() if document["provenance"]]
    assert len(carried) == 3 * len(run.attempts)  # once an attempt from one process a role
    for provenance in carried:
        assert provenance.keys() == {"command", "folder", "user", "python", "platform", "versions", "environment"}
        assert provenance["command"][:3] == ["python", "-m", "rl_eventlog_cli.demo.worker"]
        assert (provenance["folder"], provenance["user"], provenance["platform"]) == (".", "user", "Linux")
        assert provenance["environment"].keys() == {"RLEVENTLOG_LAUNCH_ID"}
