from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch

from rl_eventlog.writer.given_samples import GivenSamples
from rl_eventlog.writer.samples import sample_batches


def rows(samples: Any, *, skipped: list[tuple[int, str]] | None = None) -> list[dict[str, Any]]:
    """The rows; what is skipped goes to `skipped`, and nothing is where there is no such list."""
    found: list[tuple[int, str]] = []
    given = GivenSamples(samples)
    batches = sample_batches(
        given,
        given.count,
        step=3,
        split="validation",
        time_us=1_700_000_000_000_000,
        skipped=lambda index, kind: found.append((index, kind)),
    )
    result = [row for batch in batches for row in batch.to_pylist()]
    assert found == [] or skipped is not None
    (skipped if skipped is not None else []).extend(found)
    return result


RECORDS = [
    {"prompt": "2+2", "response": "4", "reward": 1.0, "dataset": "sums"},
    {"prompt": "3+3", "response": "7", "reward": 0.0, "dataset": "sums"},
]


@pytest.mark.parametrize(
    "samples",
    [
        RECORDS,
        {key: [record[key] for record in RECORDS] for key in RECORDS[0]},
        {"reward": np.array([1.0, 0.0])} | {k: [r[k] for r in RECORDS] for k in ("prompt", "response", "dataset")},
        {"reward": torch.tensor([1.0, 0.0])}
        | {k: tuple(r[k] for r in RECORDS) for k in ("prompt", "response", "dataset")},
        pa.Table.from_pylist(RECORDS),
        pa.RecordBatch.from_pylist(RECORDS),
        pl.DataFrame(RECORDS),
    ],
    ids=["records", "columns", "numpy", "torch", "arrow table", "arrow batch", "polars"],
)
def test_every_form_gives_the_same_rows(samples: Any) -> None:
    first, second = rows(samples)
    assert (first["prompt"], first["response"], first["reward"], first["dataset"]) == ("2+2", "4", 1.0, "sums")
    assert (second["prompt"], second["response"], second["reward"]) == ("3+3", "7", 0.0)
    assert (first["sample_index"], second["sample_index"]) == (0, 1)
    assert (first["step"], first["split"], first["time"].timestamp()) == (3, "validation", 1_700_000_000.0)
    assert first["extra"] is None


def test_every_column_takes_its_value() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "image"}], "tool_calls": [{"id": 1}], "name": "bot"},
    ]
    record = {
        "messages": messages,
        "rewards": {"format": 1, "answer": 0.5},
        "group_index": 2,
        "sample_index": 9,
        "num_turns": 2.0,
        "prompt_tokens": np.int64(5),
        "response_tokens": torch.tensor(6),
        "finish_reason": "stop",
        "policy_version": 17,
        "duration_seconds": 1.5,
        "advantage": np.float32(-0.5),
        "reference": "ref",
        "token_ids": torch.tensor([1, 2, 3]),
        "token_logprobs": np.array([-0.5, -1.5, -2.5], dtype=np.float32),
        "token_mask": [True, False, True],
    }
    (row,) = rows([record])
    assert row["messages"] == [
        {"role": "user", "content": "hi", "name": None, "tool_calls": None},
        {"role": "assistant", "content": '[{"type": "image"}]', "name": "bot", "tool_calls": '[{"id": 1}]'},
    ]
    assert row["rewards"] == [{"key": "format", "value": 1.0}, {"key": "answer", "value": 0.5}]
    assert (row["group_index"], row["sample_index"], row["num_turns"]) == (2, 9, 2)
    assert (row["prompt_tokens"], row["response_tokens"], row["policy_version"]) == (5, 6, 17)
    assert (row["token_ids"], row["token_logprobs"]) == ([1, 2, 3], [-0.5, -1.5, -2.5])
    assert row["token_mask"] == [True, False, True]
    assert (row["advantage"], row["finish_reason"], row["extra"]) == (-0.5, "stop", None)


def test_unknown_fields_and_what_does_not_fit_go_to_extra_and_cost_nothing_else() -> None:
    record = {
        "response": "fine",
        "prompt": 3,
        "reward": "high",
        "token_ids": [1, 2**40],
        "rewards": {"a": "x"},
        "messages": "hello",
        "num_turns": 1.5,
        "step": 99,
        "split": "mine",
        "time": "noon",
        "nan": float("nan"),
        "array": np.arange(2),
        4: "four",
        "nothing": None,
        "extra": {"own": 1},
    }
    (row,) = rows([record])
    assert (row["response"], row["prompt"], row["reward"], row["token_ids"]) == ("fine", None, None, None)
    assert (row["rewards"], row["messages"], row["num_turns"]) == (None, None, None)
    assert (row["step"], row["split"]) == (3, "validation")
    assert json.loads(row["extra"]) == {
        "prompt": 3,
        "reward": "high",
        "token_ids": [1, 2**40],
        "rewards": {"a": "x"},
        "messages": "hello",
        "num_turns": 1.5,
        "step": 99,
        "split": "mine",
        "time": "noon",
        "nan": "NaN",
        "array": [0, 1],
        "4": "four",
        "own": 1,
    }


def test_the_prompt_id_is_the_digest_of_the_prompt_else_of_the_messages_unless_given() -> None:
    first, second, third, fourth = rows(
        [{"prompt": "é"}, {"messages": [{"role": "user", "content": "é"}]}, {"prompt": "é", "prompt_id": "mine"}, {}]
    )
    assert first["prompt_id"] == hashlib.sha256("é".encode()).hexdigest()[:16]
    canonical = '[{"content":"é","name":null,"role":"user","tool_calls":null}]'
    assert second["prompt_id"] == hashlib.sha256(canonical.encode()).hexdigest()[:16]
    assert third["prompt_id"] == "mine"
    assert fourth["prompt_id"] is None


def test_nan_rewards_stay_nan_and_null_stays_null() -> None:
    nan, null = rows({"reward": [float("nan"), None]})
    assert nan["reward"] != nan["reward"]
    assert null["reward"] is None


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ({"prompt": ["a"], "reward": [1, 2]}, r"differ in length: \{'prompt': 1, 'reward': 2\}"),
        ({"prompt": "abc"}, "must hold columns"),
        ({"reward": 1.0}, "must hold columns"),
        ([1, 2], "not list"),
        ("text", "not str"),
        (None, "not NoneType"),
        (3, "not int"),
    ],
)
def test_what_are_no_samples_is_refused_with_a_reason(samples: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        rows(samples)


def test_a_record_that_is_none_costs_itself_alone() -> None:
    class Torn(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError

    skipped: list[tuple[int, str]] = []
    found = rows([{"prompt": "a"}, None, {"prompt": "b"}, 3, Torn(prompt="c"), ("prompt",)], skipped=skipped)
    assert [(row["prompt"], row["sample_index"]) for row in found] == [("a", 0), ("b", 2)]
    assert skipped == [(1, "NoneType"), (3, "int"), (4, "Torn"), (5, "tuple")]


@pytest.mark.parametrize("samples", [[], {}, {"prompt": []}, pa.table({"prompt": pa.array([], pa.string())})])
def test_no_samples_are_no_rows(samples: Any) -> None:
    assert rows(samples) == []


def test_two_dimensional_columns_are_one_list_a_row() -> None:
    first, second = rows({"token_ids": np.array([[1, 2], [3, 4]]), "hidden": torch.ones(2, 2)})
    assert (first["token_ids"], second["token_ids"]) == ([1, 2], [3, 4])
    assert json.loads(first["extra"]) == {"hidden": [1.0, 1.0]}


def test_huge_and_broken_text_arrives() -> None:
    (row,) = rows([{"response": "x" * 5_000_000, "prompt": "\ud800"}])
    assert len(row["response"]) == 5_000_000
    assert row["prompt"] == "\\ud800"


def test_circles_and_hostile_objects_end_as_texts() -> None:
    class Hostile:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError

        def __str__(self) -> str:
            raise RuntimeError

    circle: dict[str, Any] = {}
    circle["again"] = circle
    (row,) = rows([{"prompt": Hostile(), "odd": Hostile(), "circle": circle, "messages": [Hostile()]}])
    extra = json.loads(row["extra"])
    assert extra["prompt"] == extra["odd"] == "<Hostile>"
    assert extra["messages"] == ["<Hostile>"]
    assert extra["circle"] == {"again": "<dict>"}
