"""Every exception the library raises on purpose, in one tree.

EventLogError
 x FormatError (also ValueError)        the files do not follow the format
   - SchemaVersionError                 written by a newer major version
   - SegmentError                       one file cannot be used: path and reason
 x RunNotFoundError (also FileNotFoundError)
 x IdentityError (also ValueError)      the process does not know its run or its rank
 x OptionError (also ValueError)        an argument has a value it cannot have
 x OpenError (also OSError)             a writer could not be opened: path and reason
 x WriterClosedError (also RuntimeError)
 x WriteError (also OSError)            rows could not be written, and ``on_error="raise"``
 x SyncError                            a sync could not start or go on
   - LeaseHeldError                     another sync of this run to this target is at work
   - LedgerError                        our record and the target do not agree
 x SinkError                            a target did not take what was sent
   - SinkUnavailableError               try again later
   - SinkRejectedError                  it will never be taken as it is
 x MissingDependencyError (also ImportError)  the message names the extra to install

Messages say what went wrong, where, and what to do.
"""

from __future__ import annotations

from pathlib import Path


class EventLogError(Exception):
    """Base of all exceptions raised by rl-eventlog."""


class FormatError(EventLogError, ValueError):
    """Files do not follow the format of ``schemas/README.md``."""


class SchemaVersionError(FormatError):
    """A file was written by a newer major version of the format."""


class SegmentError(FormatError):
    """One file cannot be used.

    Attributes:
        path: the file.
        reason: what is wrong with it.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[SegmentError], tuple[Path, str]]:
        return type(self), (self.path, self.reason)


class RunNotFoundError(EventLogError, FileNotFoundError):
    """The path holds no run."""


class IdentityError(EventLogError, ValueError):
    """The process cannot tell its run, role or rank; the message says what to set."""


class OptionError(EventLogError, ValueError):
    """An argument has a value it cannot have; the message names the argument and what it may be."""


class OpenError(EventLogError, OSError):
    """A writer could not be opened; the message names the path and the reason."""


class WriterClosedError(EventLogError, RuntimeError):
    """A log call came after ``close()``."""


class WriteError(EventLogError, OSError):
    """Rows could not be written; raised only with ``on_error="raise"``."""


class SyncError(EventLogError):
    """A sync could not start or go on."""


class LeaseHeldError(SyncError):
    """Another process is syncing this run to this target."""


class LedgerError(SyncError):
    """The record of what was sent and the target do not agree."""


class SinkError(EventLogError):
    """A target did not take what was sent."""


class SinkUnavailableError(SinkError):
    """The target does not answer, or not in time: try again later."""


class SinkRejectedError(SinkError):
    """The target refused for good: credentials, address, or the data itself."""


class MissingDependencyError(EventLogError, ImportError):
    """A third-party package is not installed.

    Args:
        package: the package that could not be imported.
        extra: the extra of rl-eventlog that brings it.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f'{package} is not installed: pip install "rl-eventlog[{extra}]"')
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[type[MissingDependencyError], tuple[str, str]]:
        return type(self), (self.package, self.extra)
