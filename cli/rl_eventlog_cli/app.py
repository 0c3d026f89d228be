"""The application: its commands, and how an error leaves it.

- An error on purpose (`EventLogError`) or of the file system is one clear message on stderr, never a traceback.
- Exit statuses: 0 done, 1 something failed, 2 wrong usage, 130 interrupted.
- `rleventlog --help` and `--version` load neither polars nor a client.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

import rl_eventlog
from rl_eventlog.errors import EventLogError
from rl_eventlog_cli import output
from rl_eventlog_cli.commands import compact, demo, ls, samples, seal, show, sync, verify
from rl_eventlog_cli.options import FAILED, SUCCESS

app = typer.Typer(
    name="rleventlog",
    no_args_is_help=True,
    add_completion=False,
    # help is plain text in a pipe and on a terminal alike; a crash is Python's own traceback
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for module in (demo, ls, show, sync, samples, verify, seal, compact):
    app.command(module.__name__.rpartition(".")[2])(module.command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rleventlog {rl_eventlog.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Crash-safe event logs for distributed RL training: look at them, and replay them to tracking tools.

    Exit statuses: 0 done, 1 something failed or is damaged, 2 wrong usage, 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command line, this process's own where none is given, and leave with its exit status.

    Raises:
        SystemExit: always.
    """
    for stream in (sys.stdout, sys.stderr):
        # a terminal that knows no UTF-8 gets escapes in place of an exception
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(arguments, prog_name="rleventlog")
    except (EventLogError, OSError) as error:
        output.words(f"rleventlog: {error}")
        sys.exit(FAILED)
    sys.exit(SUCCESS)
