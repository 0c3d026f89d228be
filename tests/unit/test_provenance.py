from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl_eventlog import EventWriter
from rl_eventlog.writer.provenance import git_diff, provenance
from tests.support.raw import raw_rows

SECRET = "hf_" + "Secret0" * 5


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git checkout with one commit and an uncommitted change that holds a credential."""
    folder = tmp_path / "code"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "trunk")
    (folder / "train.py").write_text("lr = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    git(folder, "remote", "add", "origin", "https://me:hunter2@host/repo.git")
    (folder / "train.py").write_text(f'lr = 2\ntoken = "{SECRET}"\n')
    monkeypatch.chdir(folder)
    return folder


def documents(run: Path) -> list[dict[str, Any]]:
    paths = [path for path in (run / "writers").glob("*.json") if not path.name.endswith(".end.json")]
    return [json.loads(path.read_bytes()) for path in sorted(paths)]


def test_it_comes_from_rank_zero_or_an_unknown_rank_alone(tmp_path: Path, checkout: Path) -> None:
    for rank, expected in ((None, True), (0, True), (1, False)):
        run = tmp_path / f"runs-{rank}" / "r"
        with EventWriter.open(run.parent, run="r", rank=rank, launch_id="l"):
            pass
        (found,) = documents(run)
        assert (found["provenance"] is not None) == expected
        assert len(raw_rows(run, "artifacts")) == int(expected)


def test_git_is_told_and_the_diff_kept_without_credentials(tmp_path: Path, checkout: Path) -> None:
    with EventWriter.open(tmp_path, run="r") as log:
        pass
    facts = documents(log.path)[0]["provenance"]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    remote = facts["git"].pop("remote")
    assert facts["git"] == {"commit": commit, "dirty": True, "branch": "trunk"}
    assert "hunter2" not in remote
    assert remote.endswith("@host/repo.git")
    (row,) = raw_rows(log.path, "artifacts")
    diff = (log.path / "artifacts" / row["sha256"][:2] / row["sha256"]).read_text()
    assert (row["name"], row["kind"]) == ("git.diff", "file")
    assert "+lr = 2" in diff
    assert SECRET not in diff
    assert "<redacted:" in diff


def test_the_diff_can_be_left_out(tmp_path: Path, checkout: Path) -> None:
    with EventWriter.open(tmp_path, run="r", capture_diff=False) as log:
        pass
    assert raw_rows(log.path, "artifacts") == []
    assert documents(log.path)[0]["provenance"]["git"]["dirty"]


def test_a_clean_checkout_has_no_diff(checkout: Path) -> None:
    git(checkout, "checkout", "-q", ".")
    assert git_diff() is None
    assert provenance()["git"]["dirty"] is False


def test_without_git_it_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "git" not in provenance()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git" not in provenance()
    assert git_diff() is None


def test_a_removed_working_folder_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "folder" not in provenance()


def test_where_and_with_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node-[0-3]")
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/train.sif")
    monkeypatch.chdir(tmp_path)
    facts = provenance()
    assert facts["folder"] == str(tmp_path)
    assert facts["command"][0].endswith(Path(sys.executable).name)
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert (facts["job"], facts["node_list"]) == ({"SLURM_JOB_ID": "77"}, "node-[0-3]")
    assert facts["container_image"] == "/images/train.sif"
    assert facts["versions"]["pyarrow"]
    json.dumps(facts)


def test_only_known_variables_are_kept_and_no_credential_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("HF_TOKEN", "never-asked-for")
    monkeypatch.setenv("MY_OWN", "never-asked-for")
    monkeypatch.setenv("RAY_REDIS_PASSWORD", "hunter2")
    monkeypatch.setenv("SLURM_JWT", "hunter2")
    monkeypatch.setenv("RAY_ADDRESS", "ray://me:hunter2@host:10001")
    monkeypatch.setenv("TORCH_HOME", SECRET)
    environment = provenance()["environment"]
    text = json.dumps(environment)
    assert environment["NCCL_DEBUG"] == "INFO"
    assert environment["RAY_ADDRESS"].endswith("@host:10001")
    assert environment["RAY_REDIS_PASSWORD"].startswith("<redacted:")
    for word in ("never-asked-for", "hunter2", SECRET, "MY_OWN", "HF_TOKEN", "SLURM_JWT"):
        assert word not in text


def test_nothing_of_a_command_lines_credentials_reaches_the_disk(tmp_path: Path, checkout: Path) -> None:
    code = "import sys; from rl_eventlog import EventWriter; EventWriter.open(sys.argv[1], run='r').close()"
    arguments = [
        "--api-key",
        "hunter2",
        "wandb.api_key=hunter2",
        f"--name={SECRET}",
        "--url=http://u:hunter2@h",
        "--lr=1",
    ]
    env = {**os.environ, "OMPI_COMM_WORLD_SECRET": "hunter2"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "runs"), *arguments], env=env, check=True)
    (found,) = documents(tmp_path / "runs" / "r")
    assert found["provenance"]["command"][-1] == "--lr=1"
    for path in (tmp_path / "runs").rglob("*"):
        if path.is_file():
            assert b"hunter2" not in path.read_bytes(), path
            assert SECRET.encode() not in path.read_bytes(), path


def test_bytes_that_are_no_text_do_not_spoil_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / os.fsdecode(b"odd-\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NCCL_DEBUG", os.fsdecode(b"\xfe"))
    with EventWriter.open(tmp_path, run="r", notes="\ud800", capture_diff=False) as log:
        pass
    (found,) = documents(log.path)
    assert os.fsencode(found["provenance"]["folder"]) == os.fsencode(folder)
    assert found["notes"] == "\ud800"
