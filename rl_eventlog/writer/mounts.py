"""Which file system a path is on, as the kernel's mount table tells."""

from __future__ import annotations

import re
from pathlib import Path

MOUNT_TABLE = Path("/proc/self/mountinfo")
_REMOTE = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "fuse", "9p", "cifs", "smb", "virtiofs")


def file_system(path: Path) -> str:
    """Type of the file system that holds `path` (``ext4``, ``nfs4``, ``lustre``...); empty where unknown."""
    try:
        lines = MOUNT_TABLE.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    resolved = path.resolve()
    best, kind = -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, types = left.split(), right.split()
        if len(fields) < 5 or not types:
            continue
        mount = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4]))
        # later lines hide earlier ones on the same place
        if resolved.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), types[0]
    return kind


def may_stall(kind: str) -> bool:
    """Whether a write to a file system of that type may wait for another machine, or for another process."""
    return kind.startswith(_REMOTE)
