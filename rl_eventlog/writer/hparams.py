"""Hyperparameters as rows: keys flattened with ``.``, values as JSON, credentials replaced.

Mappings, dataclasses, argparse namespaces, pydantic models and OmegaConf nodes are walked into;
lists are kept whole, and so are empty mappings.
"""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from .redact import is_secret_key, redact_text, redacted
from .text import plain_json, text_of, to_json

_MAX_DEPTH = 64


def flatten_hparams(params: Any) -> dict[str, str]:
    """JSON by dotted key; the last of two equal keys counts.

    Raises:
        TypeError: `params` is nothing that has keys.
    """
    mapping = _as_mapping(params)
    if mapping is None:
        raise TypeError(f"hyperparameters must be a mapping, a dataclass or a namespace, not {type(params).__name__}")
    return {key: _json(key, value) for key, value in _walk(mapping, "", (id(params),))}


def _as_mapping(value: Any) -> Mapping[Any, Any] | None:
    try:
        if isinstance(value, Mapping):
            return dict(value.items())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if isinstance(value, Namespace):
            return vars(value)
        if hasattr(value, "model_dump") and isinstance(dumped := value.model_dump(), Mapping):  # pydantic
            return dumped
        if type(value).__name__ == "DictConfig":  # OmegaConf
            return dict(value.items())
    except Exception:  # noqa: BLE001 -- a configuration is the user's object: its own code may raise anything
        return None
    return None


def _walk(mapping: Mapping[Any, Any], prefix: str, around: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """`around` are the ids of the objects around this one: one inside itself is no mapping any more."""
    for key, value in mapping.items():
        name = prefix + text_of(key)
        # What lies below a key that names a credential is one credential.
        into = id(value) not in around and len(around) < _MAX_DEPTH and not is_secret_key(name)
        inner = _as_mapping(value) if into else None
        if inner:
            yield from _walk(inner, f"{name}.", (*around, id(value)))
        else:
            yield name, value if inner is None else {}


def _json(key: str, value: Any) -> str:
    if is_secret_key(key) and value is not None:
        return to_json(redacted(text_of(value)))
    return to_json(_redact(plain_json(value)))


def _redact(plain: Any) -> Any:
    """Credentials inside texts, lists and mappings."""
    if isinstance(plain, str):
        return redact_text(plain)
    if isinstance(plain, list):
        return [_redact(item) for item in plain]
    if isinstance(plain, dict):
        return {
            key: redacted(text_of(item)) if is_secret_key(key) and item is not None else _redact(item)
            for key, item in plain.items()
        }
    return plain
