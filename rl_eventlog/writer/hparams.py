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
from .samples import to_json

_MAX_DEPTH = 64


def flatten_hparams(params: Any) -> dict[str, str]:
    """JSON by dotted key; the last of two equal keys counts.

    Raises:
        TypeError: `params` is nothing that has keys.
    """
    mapping = _as_mapping(params)
    if mapping is None:
        raise TypeError(f"hyperparameters must be a mapping, a dataclass or a namespace, not {type(params).__name__}")
    return {key: _json(key, value) for key, value in _walk(mapping, "", 0)}


def _as_mapping(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Namespace):
        return vars(value)
    if hasattr(value, "model_dump"):  # pydantic
        dumped = value.model_dump()
        return dumped if isinstance(dumped, Mapping) else None
    if type(value).__name__ == "DictConfig" and hasattr(value, "items"):  # OmegaConf
        return dict(value.items())
    return None


def _walk(mapping: Mapping[Any, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        inner = _as_mapping(value) if depth < _MAX_DEPTH else None
        if inner:
            yield from _walk(inner, f"{name}.", depth + 1)
        else:
            yield name, value if inner is None else {}


def _json(key: str, value: Any) -> str:
    if is_secret_key(key) and value is not None:
        return to_json(redacted(str(value)))
    return to_json(_redact(value))


def _redact(value: Any) -> Any:
    """Credentials inside lists and texts."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, (list, tuple)):
        return [_redact(item) for item in value]
    if isinstance(value, Mapping):
        return {
            str(key): redacted(str(item)) if is_secret_key(str(key)) and item is not None else _redact(item)
            for key, item in value.items()
        }
    return value
