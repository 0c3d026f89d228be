"""Choosing rows by name: shell globs, as `fnmatch` reads them."""

from __future__ import annotations

from fnmatch import fnmatchcase

import polars as pl
import pytest
from hypothesis import given, strategies as st

from rl_eventlog.reduce import NamePatterns

NAMES = ["loss", "train/loss", "train/actor/loss", "train.loss", "train/loss[0]", "line\nbreak", "a^b", "a-b", "a!b"]


def chosen(names: list[str], patterns: str | list[str]) -> list[str]:
    return (
        pl.DataFrame({"name": names}, schema={"name": pl.String})
        .filter(NamePatterns(patterns).expression("name"))["name"]
        .to_list()
    )


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("loss", ["loss"]),
        ("train/*", ["train/loss", "train/actor/loss", "train/loss[0]"]),
        ("*/loss", ["train/loss", "train/actor/loss"]),
        ("train?loss", ["train/loss", "train.loss"]),
        ("train.loss", ["train.loss"]),
        ("train/loss[[]0]", ["train/loss[0]"]),
        ("a[!-^]b", ["a!b"]),
        ("line*", ["line\nbreak"]),
        (["loss", "a*"], ["loss", "a^b", "a-b", "a!b"]),
        ([], []),
        ("*", NAMES),
    ],
)
def test_patterns_choose_whole_names(patterns: str | list[str], expected: list[str]) -> None:
    assert chosen(NAMES, patterns) == expected


letters = st.text(alphabet="ab/*?[]!-^\\.&~|({$", max_size=7)


@given(pattern=letters, names=st.lists(letters, max_size=5))
def test_patterns_agree_with_fnmatch(pattern: str, names: list[str]) -> None:
    assert chosen(names, pattern) == [name for name in names if fnmatchcase(name, pattern)]
