"""Names: what they say, what is no name, and where files lie."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from rl_eventlog.durable import temporary_path
from rl_eventlog.layout import RunLayout, SegmentName, escape_run_name, open_name, sealed_name, sha16

WRITER = "01arz3ndektsv4rrffq69g5fav"
DIGEST = "0123456789abcdef"


def test_names_of_segments_say_what_is_in_them() -> None:
    assert SegmentName.parse(open_name(WRITER, 12)) == SegmentName("open", WRITER, 12)
    assert open_name(WRITER, 12) == f"{WRITER}-12.arrows"
    assert sealed_name(WRITER, 0, 7, 7, DIGEST) == f"{WRITER}-0.7-7.{DIGEST}.parquet"
    parsed = SegmentName.parse(sealed_name(WRITER, 3, 0, 2**62, DIGEST))
    assert parsed == SegmentName("sealed", WRITER, 3, 0, 2**62, DIGEST)
    assert SegmentName.parse(f"{DIGEST}.c2.parquet") == SegmentName(
        "compacted", None, None, digest=DIGEST, compactions=2
    )


@pytest.mark.parametrize(
    "name",
    [
        "",
        "run.json",
        ".tmp-01arz3ndektsv4rrffq69g5fav",
        f".{WRITER}-0.arrows",
        f"{WRITER}-0.arrows.gz",
        f"{WRITER}-0.arrows\n",
        f"{WRITER}.arrows",
        f"{WRITER}-00.arrows",
        f"{WRITER}-+1.arrows",
        f"{WRITER}-\u0661.arrows",  # a digit, but no ASCII one
        f"{WRITER.upper()}-0.arrows",
        f"{WRITER}-0.0-9.parquet",
        f"{WRITER}-0.9-0.{DIGEST}.parquet",
        f"{WRITER}-0.00-9.{DIGEST}.parquet",
        f"{WRITER}-0.0-9.{DIGEST.upper()}.parquet",
        f"{WRITER}-0.0-9.{DIGEST}0.parquet",
        f"{DIGEST}.c.parquet",
        f"{DIGEST}.c01.parquet",
        f"copy of {WRITER}-0.arrows",
        f"../{WRITER}-0.arrows",
    ],
)
def test_anything_else_is_no_event_file(name: str) -> None:
    assert SegmentName.parse(name) is None


def test_a_temporary_name_is_no_event_file_and_has_no_extension(tmp_path: Path) -> None:
    name = temporary_path(tmp_path).name
    assert SegmentName.parse(name) is None
    assert Path(name).suffix == ""


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("grpo-7b_v1.2", "grpo-7b_v1.2"),
        (".hidden", "%2Ehidden"),
        ("..", "%2E."),
        ("a/b c", "a%2Fb%20c"),
        ("50%", "50%25"),
        ("é", "%C3%A9"),
        ("a\0\n", "a%00%0A"),
    ],
)
def test_a_run_name_becomes_one_safe_folder_name(name: str, folder: str) -> None:
    assert escape_run_name(name) == folder


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_different_run_names_never_share_a_folder(one: str, other: str) -> None:
    folders = []
    for name in (one, other):
        try:
            folders.append(escape_run_name(name))
        except ValueError:
            return
    assert (folders[0] == folders[1]) == (one == other)
    assert not folders[0].startswith(".")
    assert set(folders[0]) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-%")


def test_a_run_name_may_have_128_bytes_once_escaped() -> None:
    assert escape_run_name("a" * 128) == "a" * 128
    for name in ("a" * 129, "é" * 22):
        with pytest.raises(ValueError, match="at most 128 are allowed"):
            escape_run_name(name)
    with pytest.raises(ValueError, match="empty"):
        escape_run_name("")


def test_files_of_a_run_lie_where_the_specification_says(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    places = {
        layout.run_json: "run.json",
        # printf launch-1 | sha256sum
        layout.launch("launch-1"): "launches/aad36a428ce91190.json",
        layout.writer(WRITER): f"writers/{WRITER}.json",
        layout.beat(WRITER): f"writers/{WRITER}.beat",
        layout.end(WRITER): f"writers/{WRITER}.end.json",
        layout.shard("metrics", "node-1"): "events/metrics/35",
        layout.artifact("ab" + "0" * 62): f"artifacts/ab/ab{'0' * 62}",
        layout.sync: ".sync",
    }
    assert {path.relative_to(tmp_path).as_posix() for path in places} == set(places.values())


def test_sha16_is_the_head_of_the_sha256() -> None:
    assert sha16(b"") == "e3b0c44298fc1c14"
