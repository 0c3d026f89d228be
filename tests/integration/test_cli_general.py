"""What holds for the command line as a whole."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rl_eventlog
from tests.support.cli import rleventlog, rleventlog_process
from tests.support.small_runs import HOSTILE, one_rank, two_ranks

pytestmark = pytest.mark.integration

COMMANDS = ["demo", "ls", "show", "sync", "samples", "verify", "seal", "compact"]


def in_a_terminal(*arguments: str | Path, env: dict[str, str]) -> str:
    """What `rleventlog` writes to a terminal of 80 columns and 24 lines."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **env}
    command = [sys.executable, "-m", "rl_eventlog_cli", *map(str, arguments)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        written = bytearray()
        while True:
            try:
                written += os.read(ours, 1 << 16)
            except OSError:  # how Linux says that the other end is closed
                break
    os.close(ours)
    assert process.returncode == 0, written.decode()
    return written.decode().replace("\r\n", "\n")


def test_version_is_printed() -> None:
    result = rleventlog("--version")
    assert (result.status, result.out) == (0, f"rleventlog {rl_eventlog.__version__}\n")


def test_help_names_every_command() -> None:
    result = rleventlog("--help")
    assert result.status == 0
    assert re.findall(r"^  (\w+)  ", result.out.split("Commands:")[1], re.MULTILINE) == COMMANDS
    assert "Exit statuses" in result.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_documents_its_exit_status_in_80_columns(command: str) -> None:
    result = rleventlog(command, "--help")
    assert result.status == 0
    assert re.search(r"exit\s+status", result.out, re.IGNORECASE)
    assert max(map(len, result.out.splitlines())) <= 80
    assert "\x1b" not in result.out


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_print_data_know_json(command: str) -> None:
    assert "--json" in rleventlog(command, "--help").out


def test_wrong_usage_is_status_2() -> None:
    for arguments in (["no-such-command"], ["ls", "--no-such-option"], ["show"], ["samples", "x", "--best", "none"]):
        result = rleventlog(*arguments)
        assert result.status == 2, arguments
        assert "rleventlog" in result.err
        assert result.out == ""


def test_help_loads_nothing_heavy() -> None:
    code = """
import sys
from rl_eventlog_cli.app import main
try:
    main(["--help"])
except SystemExit:
    pass
heavy = {"polars", "torch", "mlflow", "wandb", "tensorboard", "rich.progress"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_output_in_a_pipe_has_no_escape_sequence_and_cuts_nothing(tmp_path: Path) -> None:
    name = "a-run-with-a-name-" + "that-goes-on-" * 7
    two_ranks(tmp_path, name)
    result = rleventlog_process("ls", tmp_path, env={"FORCE_COLOR": ""})
    assert result.status == 0
    assert "\x1b" not in result.out
    (line,) = (line for line in result.out.splitlines() if name in line)
    assert "trainer 2/2" in line


@pytest.mark.parametrize("arguments", [("ls",), ("show", "--ranks"), ("samples",)], ids=lambda value: value[0])
def test_output_on_a_terminal_fits_80_columns_and_obeys_no_color(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    run = two_ranks(tmp_path)
    where = tmp_path if arguments == ("ls",) else run
    plain = in_a_terminal(*arguments, where, env={"NO_COLOR": "1"})
    assert not re.search(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", plain), "a colour"
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in plain.splitlines()) <= 80


def test_an_interrupt_is_status_130_and_no_traceback(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    code = """
import sys
import rl_eventlog.reader
def interrupted(*_): raise KeyboardInterrupt
rl_eventlog.reader.find_runs = interrupted
from rl_eventlog_cli.app import main
main(["ls", sys.argv[1]])
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_leaves_no_traceback(tmp_path: Path) -> None:
    for number in range(3):
        one_rank(tmp_path, f"run-{number}", {f"metric-{n}": 1.0 for n in range(500)})
    shell = f"{sys.executable} -m rl_eventlog_cli show {tmp_path / 'run-0'} --json | head -1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr


def test_names_from_a_run_never_steer_the_terminal(tmp_path: Path) -> None:
    with rl_eventlog.EventWriter.open(tmp_path, run="evil", notes=HOSTILE, tags=[HOSTILE], rank=0) as log:
        log.log_metrics({HOSTILE: 1.0}, step=0)
        log.log_hyperparams({HOSTILE: HOSTILE})
    for arguments in (("ls", tmp_path), ("show", log.path), ("ls", tmp_path, "--json"), ("show", log.path, "--json")):
        result = rleventlog_process(*arguments)
        assert result.status == 0
        said = result.out + result.err
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", said)
    shown = rleventlog_process("show", log.path).out
    assert r"\x1b[2J\x1b]0;owned\x07[red]markup[/red]\r\u202egnp.exe\x9b31m" in shown
    document = rleventlog_process("show", log.path, "--json").json()
    assert json.loads(document["hparams"][0]["value"]) == HOSTILE
