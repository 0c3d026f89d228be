"""The package as users get it: what an import loads, which names it has, what a wheel holds."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

import rl_eventlog

PROJECT = Path(__file__).parents[2]
HEAVY = ["matplotlib", "mlflow", "pandas", "polars", "ray", "rich", "tensorboard", "torch", "typer", "wandb"]


def python(code: str, *, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run code in a fresh interpreter and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=env, cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def heavy_modules_after(code: str) -> list[str]:
    answer = python(f"{code}\nimport json, sys\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))")
    loaded: list[str] = json.loads(answer)
    return loaded


def test_import_loads_nothing_heavy() -> None:
    assert heavy_modules_after("import rl_eventlog") == []


def test_using_the_writer_loads_nothing_heavy(tmp_path: Path) -> None:
    code = f"""
import rl_eventlog as rle
with rle.EventWriter.open({str(tmp_path)!r}, run="light", role="trainer", rank=0) as log:
    log.log_hyperparams({{"lr": 1e-6}})
    log.log_metrics({{"loss": 1.0}}, step=0)
    log.log_samples([{{"prompt": "1+1", "response": "2", "reward": 1.0}}], step=0)
    assert rle.current() is log
assert isinstance(rle.current(), rle.NullWriter)
"""
    assert heavy_modules_after(code) == []


def test_all_is_exact_and_every_name_resolves() -> None:
    listed = set(rl_eventlog.__all__)
    for name in listed:
        assert getattr(rl_eventlog, name) is not None
    # submodules become attributes once imported, and `errors` alone is public under its name
    helpers = {"TYPE_CHECKING", "annotations", "import_module"}
    public = {
        name
        for name in dir(rl_eventlog)
        if not name.startswith("_") and name not in helpers and f"rl_eventlog.{name}" not in sys.modules
    }
    assert public | {"__version__", "errors"} == listed
    assert len(rl_eventlog.__all__) == len(listed)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Runz'"):
        _ = rl_eventlog.Runz  # type: ignore[attr-defined]


def test_version_is_that_of_the_distribution() -> None:
    project = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{rl_eventlog.__version__}"' in project


@pytest.mark.parametrize("package", ["rl_eventlog", "rl_eventlog_cli"])
def test_both_packages_are_typed(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).with_name("py.typed").is_file()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the installed hatchling, from an untouched checkout and without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(folder), str(PROJECT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_both_packages_their_markers_and_the_schemas(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    sources = {
        path.relative_to(parent).as_posix()
        for parent, package in ((PROJECT, "rl_eventlog"), (PROJECT / "cli", "rl_eventlog_cli"))
        for path in (parent / package).rglob("*.py")
    }
    schemas = {f"rl_eventlog/schemas/{path.name}" for path in (PROJECT / "schemas").glob("*.json")}
    assert schemas
    assert names >= sources | schemas | {"rl_eventlog/py.typed", "rl_eventlog_cli/py.typed"}
    assert tops == {"rl_eventlog", "rl_eventlog_cli", f"rl_eventlog-{rl_eventlog.__version__}.dist-info"}


def test_wheel_declares_the_command_and_the_extras(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = f"rl_eventlog-{rl_eventlog.__version__}.dist-info"
        scripts = ConfigParser()
        scripts.read_string(archive.read(f"{info}/entry_points.txt").decode())
        metadata = archive.read(f"{info}/METADATA").decode().splitlines()
    assert dict(scripts["console_scripts"]) == {"rleventlog": "rl_eventlog_cli.app:main"}
    extras = {line.removeprefix("Provides-Extra: ") for line in metadata if line.startswith("Provides-Extra: ")}
    assert extras == {"all", "dev", "gpu", "mlflow", "plot", "ray", "tensorboard", "torch", "wandb"}
    required = [line for line in metadata if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    assert [line.split()[1].split(">=")[0] for line in required] == ["polars", "pyarrow", "rich", "typer"]


def test_an_installed_wheel_finds_its_schemas_and_writes_and_reads(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    code = """
import rl_eventlog as rle
with rle.EventWriter.open("runs", run="wheel", role="trainer", rank=0) as log:
    log.log_metrics({"loss": 0.5}, step=3)
print(rle.__file__)
print(rle.Run("runs/wheel").metrics().collect()["value"].to_list())
"""
    # PYTHONPATH comes before the editable install's folders
    where, values = python(code, env={**os.environ, "PYTHONPATH": str(site)}, cwd=tmp_path).splitlines()
    assert Path(where).is_relative_to(site)
    assert values == "[0.5]"
