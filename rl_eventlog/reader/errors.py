"""What a run that cannot be used raises, whatever is done with it."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from rl_eventlog.errors import EventLogError

RUN_ERRORS = (EventLogError, OSError, pl.exceptions.PolarsError, pa.ArrowException)
"""Where many runs are worked on, these are of one run and stop no other; anything else is a bug of ours."""
