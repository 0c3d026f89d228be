"""Facts about this process and machine that prove later whether it is still alive."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def host_name() -> str:
    """Host name as the kernel gives it."""
    return socket.gethostname()


def boot_id() -> str | None:
    """The kernel's id of this boot; None where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def process_start(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None where it is gone, not to be seen, or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command in parentheses may hold blanks and parentheses; fields 3 and 22 count from behind it.
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def process_key(pid: int | None = None) -> str:
    """A name for a process that no other process ever has: boot, pid and start."""
    pid = os.getpid() if pid is None else pid
    return f"{(boot_id() or host_name())[:8]}-{pid}-{process_start(pid) or 0}"
