"""README and docs: every command in them is run, every option of the command line is in them, every link leads on."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.cli import rleventlog, rleventlog_process

pytestmark = pytest.mark.integration

PROJECT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/architecture.md", "docs/cli.md", "docs/guide.md", "docs/targets.md"]
COMMANDS = ["demo", "ls", "show", "sync", "samples", "verify", "seal", "compact"]


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    language: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    text = (PROJECT / page).read_text(encoding="utf-8")
    for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(page, language, body)


def command_lines(page: str) -> list[list[str]]:
    """The commands in the `sh` blocks of a page, as a shell splits them."""
    lines = [line for block in blocks(page) if block.language == "sh" for line in block.text.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the Python examples ran from the first to the last, those of the README first."""
    folder = tmp_path_factory.mktemp("readme")
    for block in (block for page in PAGES for block in blocks(page)):
        if block.language == "python":
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", block.text],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{block.text}\n{done.stderr}"
    return folder


def test_the_examples_of_the_readme_write_a_run_and_read_it(folder: Path) -> None:
    languages = [block.language for block in blocks("README.md")]
    assert languages.count("python") >= 3
    assert (folder / "runs" / "grpo-qwen" / "run.json").is_file()


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_works(page: str, folder: Path) -> None:
    for words in command_lines(page):
        check_command(words, folder)


def check_command(words: list[str], folder: Path) -> None:
    match words:
        case ["rleventlog", *arguments]:
            result = rleventlog_process(*arguments, cwd=folder)
            assert result.status == 0, (words, result.err)
        case ["make", target]:
            # what it does is tested elsewhere, this test among it
            subprocess.run(["make", "--dry-run", target], cwd=PROJECT, check=True, capture_output=True)
        case ["wandb", "sync", "--dry-run", pattern]:
            found = sorted(str(path.relative_to(folder)) for path in folder.glob(pattern))
            done = subprocess.run(
                [sys.executable, "-m", "wandb", "sync", "--dry-run", *found],
                cwd=folder,
                capture_output=True,
                text=True,
                check=True,
            )
            assert f"Would sync {len(found)} run(s)" in done.stdout + done.stderr
            assert found
        case ["pip", "install", "-e", requirement]:
            checkout, _, extras = requirement.removesuffix("]").partition("[")
            assert checkout == "."
            provided = metadata("rl-eventlog").get_all("Provides-Extra") or []
            assert set(filter(None, extras.split(","))) <= set(provided)
        case _:
            pytest.fail(f"no test knows how to check {shlex.join(words)!r}")


def test_the_first_screen_of_the_readme_has_the_two_commands() -> None:
    first_screen = (PROJECT / "README.md").read_text(encoding="utf-8").splitlines()[:24]
    assert {"make demo", "make test"} <= {line.partition("#")[0].strip() for line in first_screen}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_documented(command: str) -> None:
    page = (PROJECT / "docs/cli.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", page, flags=re.MULTILINE)
    (text,) = [part for part in section if part.startswith(f"{command}\n")]
    options = set(re.findall(r"(--[a-z][a-z-]*)", rleventlog(command, "--help").out.split("Options:")[1]))
    assert options - {"--help"} <= set(re.findall(r"--[a-z][a-z-]*", text)), command


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (PROJECT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not target.startswith("http"):
            assert (PROJECT / page).parent.joinpath(target).exists(), target


def test_the_layout_in_the_readme_is_that_of_the_repository() -> None:
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    for path in re.findall(r"^\| `([^`]+)/` \|", text, re.MULTILINE):
        assert (PROJECT / path).is_dir(), path
