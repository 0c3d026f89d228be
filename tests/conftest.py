"""What holds for every test: a clean environment, quick tests first, one list of missing system tools."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import settings

from tests.support.judge import Judge

# Each run of `make test` tries the same examples; `make soak` looks for new ones.
settings.register_profile("default", deadline=None, derandomize=True, database=None)
settings.register_profile("soak", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

#: marker -> (what Debian calls the tool, programs of which one must be on PATH)
SYSTEM_TOOLS = {
    "needs_chromium": ("chromium", ("chromium", "chromium-browser", "google-chrome")),
    "needs_rsync": ("rsync", ("rsync",)),
    "needs_fuse": ("fuse3", ("fusermount3",)),
}

#: Folders by the time their tests take; what is not named runs in between.
FOLDER_ORDER = {"unit": 0, "property": 1, "crash": 3, "integration": 4}

#: Variables by which launchers, schedulers, clients and terminals would reach into a test.
FOREIGN_PREFIXES = (
    "RLEVENTLOG_",
    "MLFLOW_",
    "OMPI_",
    "PALS_",
    "PMI_",
    "PMIX_",
    "RAY_",
    "SLURM_",
    "TORCHELASTIC_",
    "WANDB_",
)
FOREIGN_NAMES = frozenset(
    {
        "COLUMNS",  # the width of somebody's terminal
        "GROUP_RANK",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NODE_RANK",
        "RANK",
        "ROLE_NAME",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "WORLD_SIZE",
    }
)

_missing_tools = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_missing_tools] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests = config.rootpath / "tests"
    items.sort(key=lambda item: FOLDER_ORDER.get(item.path.relative_to(tests).parts[0], 2))


def missing_tool(marker: str) -> str | None:
    """Say which system tool a test with this marker lacks; None where it is there."""
    debian_name, programs = SYSTEM_TOOLS[marker]
    if not any(shutil.which(program) for program in programs):
        return f"{debian_name} is not installed"
    if marker == "needs_fuse" and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened here"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in SYSTEM_TOOLS:
        if item.get_closest_marker(marker) and (reason := missing_tool(marker)):
            item.config.stash[_missing_tools][item.nodeid] = reason
            pytest.skip(reason)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    missing = config.stash[_missing_tools]
    if missing:
        terminalreporter.section(f"{len(missing)} tests skipped for missing system tools")
        for nodeid, reason in missing.items():
            terminalreporter.line(f"{nodeid}: {reason}")


@pytest.fixture(scope="session", autouse=True)
def _session_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep clients away from the home folder; they may share caches within the session."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
            patch.delenv(variable, raising=False)
        yield


@pytest.fixture(scope="module", autouse=True)
def _environment_of_modules() -> Iterator[None]:
    """Start the fixtures of each module without launcher variables; what they set goes with them."""
    with _without_foreign_variables():
        yield


@pytest.fixture(autouse=True)
def _isolated_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Start each test without launcher variables and with a state folder of its own."""
    with _without_foreign_variables():
        os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
        yield
        _close_writers()


@contextmanager
def _without_foreign_variables() -> Iterator[None]:
    before = dict(os.environ)
    for name in before:
        if name in FOREIGN_NAMES or name.startswith(FOREIGN_PREFIXES):
            del os.environ[name]
    yield
    # Not only what was set here: a writer puts its launch id into os.environ, and the next test is another job.
    os.environ.clear()
    os.environ.update(before)


def _close_writers() -> None:
    """Close what a test left open, so that the next one meets no writer of another."""
    if "rl_eventlog.writer" in sys.modules:
        from rl_eventlog.writer import EventWriter, current

        while isinstance(writer := current(), EventWriter):
            writer.close(timeout=1)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """A process that reads raw files and never imports the library."""
    one = Judge()
    yield one
    one.close()
