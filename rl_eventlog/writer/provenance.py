"""What an attempt was started from: code, command, machine, versions. Credentials are replaced.

Collected once at open by rank 0 (or an unknown rank) of a role. What cannot be found out is left
out; nothing here raises, and git gets a bounded time.
"""

from __future__ import annotations

import getpass
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from .redact import is_secret_key, redact_arguments, redact_text, redacted

MAX_DIFF_BYTES = 16 << 20
_GIT_SECONDS = 5.0
_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "HOSTNAME", "OMP_NUM_THREADS", "PYTHONPATH", "VIRTUAL_ENV"})
_VARIABLE_PREFIXES = (
    "CUDA_",
    "GLOO_",
    "NCCL_",
    "OMPI_COMM_WORLD_",
    "PYTORCH_",
    "RAY_",
    "RLEVENTLOG_",
    "SLURM_",
    "TORCH",
)
_JOB_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_STEP_ID",
    "LSB_JOBID",
    "PBS_JOBID",
)
_IMAGES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "CONTAINER_IMAGE")


def provenance() -> dict[str, Any]:
    """The facts as a JSON-able mapping."""
    env = os.environ
    facts = {
        "command": redact_arguments(_command()),
        "folder": _folder(),
        "user": _user(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": _git_facts(),
        "versions": _versions(),
        "nvidia_driver": _first_line(Path("/proc/driver/nvidia/version")),
        "container_image": next((env[name] for name in _IMAGES if env.get(name)), None),
        "job": {name: env[name] for name in _JOB_VARIABLES if env.get(name)},
        "node_list": env.get("SLURM_JOB_NODELIST"),
        "environment": {
            name: redacted(value) if is_secret_key(name) else redact_text(value)
            for name, value in sorted(env.items())
            if name in _VARIABLES or (name.startswith(_VARIABLE_PREFIXES) and name != "SLURM_JWT")  # a token
        },
    }
    return {name: fact for name, fact in facts.items() if fact}


def git_diff() -> bytes | None:
    """Uncommitted changes of the working folder as a patch; None where there are none."""
    text = _git("diff", "--no-ext-diff", "--no-textconv", "HEAD")
    return redact_text(text).encode(errors="surrogateescape")[:MAX_DIFF_BYTES] if text else None


def _command() -> list[str]:
    try:
        raw = Path("/proc/self/cmdline").read_bytes().rstrip(b"\0")
    except OSError:
        return [sys.executable, *sys.argv]
    return [part.decode(errors="replace") for part in raw.split(b"\0")]


def _folder() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return None


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in many containers
        return str(os.getuid())


def _git_facts() -> dict[str, Any] | None:
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return None
    return {
        "commit": commit.strip(),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "branch": (_git("rev-parse", "--abbrev-ref", "HEAD") or "").strip(),
        "remote": redact_text((_git("config", "--get", "remote.origin.url") or "").strip()),
    }


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="surrogateescape") if done.returncode == 0 else None


def _versions() -> dict[str, str]:
    """Versions of what the program has loaded already; nothing is imported for it."""
    versions = {}
    for name in ("torch", "ray", "numpy", "transformers", "vllm", "pyarrow"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version:
            versions[name] = str(version)
    cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    return versions | ({"cuda": str(cuda)} if cuda else {})


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
