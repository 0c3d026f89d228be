"""Facts about this process and machine that prove later whether it is still alive."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def host_name() -> str:
    """Host name as the kernel gives it."""
    return socket.gethostname()


def boot_id() -> str | None:
    """The kernel's id of this boot; None where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def pid_namespace() -> str | None:
    """The namespace in which this process's pid means something; None where it is not to be seen."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None


def process_facts() -> dict[str, Any]:
    """What documents record of this process: `host, boot_id, pid_namespace, pid, process_start`."""
    pid = os.getpid()
    return {
        "host": host_name(),
        "boot_id": boot_id(),
        "pid_namespace": pid_namespace(),
        "pid": pid,
        "process_start": process_start(pid),
    }


def is_provably_dead(facts: Mapping[str, Any]) -> bool:
    """Whether the process of these `process_facts` is known to be gone.

    Proof exists only on its own host and boot, and where its pid can be seen: in another container on
    the same host it cannot.
    """
    return _can_be_seen(facts) and bool(process_start(int(facts["pid"])) != facts["process_start"])


def is_provably_alive(facts: Mapping[str, Any]) -> bool:
    """Whether the process of these `process_facts` is seen to run here."""
    return _can_be_seen(facts) and bool(process_start(int(facts["pid"])) == facts["process_start"])


def _can_be_seen(facts: Mapping[str, Any]) -> bool:
    """Whether the process would be seen here if it ran."""
    here = {"host": host_name(), "boot_id": boot_id(), "pid_namespace": pid_namespace()}
    if any(value is None or facts.get(key) != value for key, value in here.items()):
        return False
    return facts.get("pid") is not None and facts.get("process_start") is not None


def process_start(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None where it is gone, not to be seen, or a zombie."""
    fields = _stat_fields(pid)
    return None if not fields or fields[0] in (b"Z", b"X") else int(fields[19])


def process_age(pid: int) -> float | None:
    """Seconds since a process was started, also those in which the machine slept; None where it is not to be seen."""
    start = process_start(pid)
    return None if start is None else time.clock_gettime(time.CLOCK_BOOTTIME) - start / os.sysconf("SC_CLK_TCK")


def parent_of(pid: int) -> int | None:
    """The process that started this one; None where it is not to be seen."""
    fields = _stat_fields(pid)
    return int(fields[1]) if fields else None


def environment_names(pid: int) -> set[str]:
    """Names of the variables a process was started with; empty where they are not to be seen."""
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return set()
    return {entry.partition(b"=")[0].decode(errors="replace") for entry in block.split(b"\0")}


def _stat_fields(pid: int) -> list[bytes]:
    """The fields of `/proc/<pid>/stat` from the third on: the command before them may hold blanks and parentheses."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def process_key(pid: int | None = None) -> str:
    """A name for a process that no other process ever has: boot, pid and start."""
    pid = os.getpid() if pid is None else pid
    return f"{(boot_id() or host_name())[:8]}-{pid}-{process_start(pid) or 0}"
