"""Errors cross processes: a worker's error is the caller's."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from rl_eventlog import errors

CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.EventLogError)]
ARGUMENTS = {errors.SegmentError: (Path("a.parquet"), "torn"), errors.MissingDependencyError: ("wandb", "wandb")}


@pytest.mark.parametrize("error_type", CLASSES, ids=lambda one: one.__name__)
def test_an_error_comes_back_from_another_process_as_it_was(error_type: type[errors.EventLogError]) -> None:
    error = error_type(*ARGUMENTS.get(error_type, ("what went wrong",)))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is error_type
    assert str(again) == str(error)
    assert vars(again) == vars(error)
