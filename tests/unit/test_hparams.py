from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_eventlog import EventWriter
from rl_eventlog.writer.hparams import flatten_hparams
from rl_eventlog.writer.redact import redacted
from tests.support.raw import raw_rows


@dataclass
class Optimizer:
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)


@dataclass
class Config:
    optimizer: Optimizer = field(default_factory=Optimizer)
    api_key: str = "hunter2"


class PydanticLike:
    def model_dump(self) -> dict[str, Any]:
        return {"lr": 0.1, "inner": {"a": 1}}


class DictConfig:
    def items(self) -> Any:
        return {"lr": 0.1}.items()


class Url:
    def __str__(self) -> str:
        return "https://me:plain-secret@host"


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError

    def __str__(self) -> str:
        raise RuntimeError


def flat(params: Any) -> dict[str, Any]:
    return {key: json.loads(value) for key, value in flatten_hparams(params).items()}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"a": 1, "b": {"c": [1, {"d": 2}], "e": {}}}, {"a": 1, "b.c": [1, {"d": 2}], "b.e": {}}),
        (Config(), {"optimizer.lr": 0.1, "optimizer.betas": [0.9, 0.95], "api_key": redacted("hunter2")}),
        ({"cfg": Optimizer()}, {"cfg.lr": 0.1, "cfg.betas": [0.9, 0.95]}),
        (Namespace(lr=0.1, deep=Namespace(a=None)), {"lr": 0.1, "deep.a": None}),
        (PydanticLike(), {"lr": 0.1, "inner.a": 1}),
        (DictConfig(), {"lr": 0.1}),
        ({1: 2, None: 3, (1, 2): {"x": 4}}, {"1": 2, "None": 3, "(1, 2).x": 4}),
        ({"a": float("nan"), "b": float("-inf")}, {"a": "NaN", "b": "-Infinity"}),
        ({"a": np.float32(0.5), "b": np.arange(2), "c": torch.tensor([1.0])}, {"a": 0.5, "b": [0, 1], "c": [1.0]}),
        ({"dtype": torch.bfloat16, "p": Path("/x")}, {"dtype": "torch.bfloat16", "p": "/x"}),
        ({}, {}),
    ],
)
def test_configurations_of_every_kind_become_dotted_keys(params: Any, expected: dict[str, Any]) -> None:
    assert flat(params) == expected


@pytest.mark.parametrize("params", [None, 3, "text", [1], Config])
def test_what_has_no_keys_is_refused(params: Any) -> None:
    with pytest.raises(TypeError, match=f"not {type(params).__name__}"):
        flatten_hparams(params)


def test_an_object_whose_own_code_fails_is_refused() -> None:
    with pytest.raises(TypeError, match="not Hostile"):
        flatten_hparams(Hostile())


def test_circles_and_hostile_objects_end_as_texts() -> None:
    circle: dict[str, Any] = {"a": 1}
    circle["again"] = circle
    circle["list"] = [circle]
    circle["odd"] = Hostile()
    found = flat(circle)
    assert found["a"] == 1
    assert found["odd"] == "<Hostile>"
    assert isinstance(found["again"], dict)


def test_credentials_never_reach_the_rows() -> None:
    params = {
        "hub": {"hf_token": "plain-secret", "user": "me"},
        "password": {"nested": "plain-secret"},
        "tracking": "https://me:plain-secret@host/x",
        "env": [{"API_KEY": "plain-secret"}, ["sk-" + "a1" * 12]],
        "object": Url(),
        "max_new_tokens": 5,
        "pad_token_id": 0,
        "eos_token": "</s>",
        "tokenizer": {"name": "qwen"},
        "token_mult_prob_error": 1.5,
        "session_token": None,
    }
    text = json.dumps(flatten_hparams(params))
    assert "plain-secret" not in text
    assert "sk-a1" not in text
    found = flat(params)
    assert found["hub.hf_token"] == redacted("plain-secret")
    assert found["hub.user"] == "me"
    assert found["object"] == f"https://{redacted('me:plain-secret')}@host"
    assert found["env"][0] == {"API_KEY": redacted("plain-secret")}
    survivors = ("max_new_tokens", "pad_token_id", "eos_token", "tokenizer.name", "token_mult_prob_error")
    assert [found[key] for key in survivors] == [5, 0, "</s>", "qwen", 1.5]
    assert found["session_token"] is None


def test_the_rows_on_disk_hold_no_credential(tmp_path: Path) -> None:
    with EventWriter.open(tmp_path, run="r", capture_diff=False) as log:
        log.log_hyperparams({"wandb_token": "plain-secret", "text": "hf_" + "aB3" * 12})
    assert {row["key"]: json.loads(row["value"])[:10] for row in raw_rows(log.path, "hparams")} == {
        "wandb_token": "<redacted:",
        "text": "<redacted:",
    }
    assert not any(b"plain-secret" in path.read_bytes() for path in log.path.rglob("*") if path.is_file())
