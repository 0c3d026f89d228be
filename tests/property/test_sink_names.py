"""Names at targets: never refused, never two in one."""

from __future__ import annotations

import re

from hypothesis import example, given, strategies as st
from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, _validate_metric_name

from rl_eventlog.sinks.names import MAX_KEY_LENGTH, cut, key, path_part

# what the rules are about, next to characters of all scripts
TRICKY = st.sampled_from(
    ["/", ".", "_", "_0x", "_0x2f_", "_0xh", "x", "0", ":", " ", "@", "(", "\n", "é", "漢", "\U0001f600"]
)
NAMES = st.lists(TRICKY | st.characters(codec="utf-8"), max_size=12).map("".join) | st.text(
    st.characters(codec="utf-8"), min_size=200, max_size=400
)


def unescaped(text: str) -> str:
    """The name behind a key that was not cut, read from left to right."""
    return re.sub(r"_0x([0-9a-f]*)_", lambda m: chr(int(m[1], 16)) if m[1] else "", text)


@given(NAMES)
@example("a/./b/../c//d/")
@example("_0x_")
@example("_0x2f_/_0xh")
@example("_0x28_0x29_")
def test_mlflow_takes_every_key_and_short_ones_can_be_read_back(name: str) -> None:
    made = key(name)
    _validate_metric_name(made.text)  # type: ignore[no-untyped-call]
    assert len(made.text) <= MAX_ENTITY_KEY_LENGTH
    if made.digest is None:
        assert unescaped(made.text) == name
    else:
        assert made.text.endswith(f"_0xh{made.digest}_")


@given(NAMES, NAMES)
def test_two_names_never_share_a_key_or_a_path_part(first: str, second: str) -> None:
    assert (key(first) == key(second)) == (first == second)
    assert (path_part(first) == path_part(second)) == (first == second)


@given(NAMES)
def test_a_path_part_is_one_safe_part(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", path_part(name))
    assert path_part(name) not in (".", "..")


def test_plain_names_are_kept_as_they_are() -> None:
    for name in (
        "train/loss",
        "timing/generation",
        "system/node-1/gpu_0",
        "a.b.c",
        "a: b",
        "...",
        ".hidden/x",
        "n" * 250,
    ):
        assert key(name).text == name


def test_long_names_differ_by_their_whole_text() -> None:
    names = ["n" * 251, "n" * 252, "n" * 250 + "m", "(" * 250]
    texts = {key(name).text for name in names}
    assert len(texts) == len(names)
    assert all(len(text) <= MAX_KEY_LENGTH for text in texts)


@given(st.text(max_size=300), st.integers(80, 200))
def test_a_cut_text_fits_and_says_so(text: str, limit: int) -> None:
    made = cut(text, limit)
    assert made == text if len(text) <= limit else len(made) == limit and f"[cut: {len(text)} characters" in made
