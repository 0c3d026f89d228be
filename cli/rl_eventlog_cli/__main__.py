"""`python -m rl_eventlog_cli` is `rleventlog`."""

from __future__ import annotations

from rl_eventlog_cli.app import main

main()
