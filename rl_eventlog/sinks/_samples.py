"""Validation samples for people: grouped by split and step, as plain text or as an HTML page.

Samples are written by models and therefore hostile: no character of theirs is markup, a control
character or a change of writing direction in what these functions return.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

import pyarrow as pa

from .names import cut

MAX_FIELD_LENGTH = 20_000
"""Characters of one field on a page; the Parquet file beside it has all."""

#: embeddings, overrides and isolates of writing direction: they make a text look like another
_DIRECTION = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}
_HIDDEN = frozenset({"split", "step", "token_ids", "token_logprobs", "token_mask"})
_STYLE = "body{font:14px sans-serif;margin:2em}pre{white-space:pre-wrap;background:#f4f4f4;padding:.5em;margin:0}"
_STYLE += "dt{color:#666;margin-top:.5em}dd{margin:0}article{border-top:1px solid #ccc}"


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of one split at one step."""

    split: str
    step: int | None
    rows: pa.Table


def batches(samples: pa.Table) -> Iterator[Batch]:
    """Group samples by (split, step), in the order in which the groups begin."""
    groups: dict[tuple[str, int | None], list[int]] = {}
    for index, group in enumerate(zip(samples["split"].to_pylist(), samples["step"].to_pylist(), strict=True)):
        groups.setdefault(group, []).append(index)
    for (split, step), indices in groups.items():
        yield Batch(split, step, samples.take(pa.array(indices, pa.int64())))


def visible(text: str) -> str:
    r"""`text` with control characters, bar newline and tab, written as ``\x1b`` or ``\u202e``."""
    return "".join(character if _harmless(character) else _spelled(character) for character in _newlines(text))


def to_text(row: dict[str, Any], limit: int = MAX_FIELD_LENGTH) -> str:
    """One sample as lines of ``name: value``, its texts indented below their names."""
    lines = []
    for name, text in _fields(row, limit):
        lines.append(f"{name}: {text}" if "\n" not in text else f"{name}:\n" + _indented(text))
    return "\n".join(lines)


def to_html(batch: Batch) -> str:
    """A page without scripts, links or images."""
    title = escape(visible(f"{batch.split} samples, step {batch.step}"))
    parts = [
        "<!doctype html><html><head><meta charset=utf-8>",
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>",
    ]
    for row in batch.rows.to_pylist():
        parts.append("<article><dl>")
        parts += (f"<dt>{escape(name)}</dt><dd><pre>{escape(text)}</pre></dd>" for name, text in _fields(row))
        parts.append("</dl></article>")
    return "\n".join([*parts, "</body></html>\n"])


def _fields(row: dict[str, Any], limit: int = MAX_FIELD_LENGTH) -> Iterator[tuple[str, str]]:
    for name, value in row.items():
        if value is not None and name not in _HIDDEN:
            yield name, visible(cut(_as_text(name, value), limit))


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if name == "messages":
        return "\n".join(f"[{turn['role']}] {turn['content'] or ''} {turn['tool_calls'] or ''}" for turn in value)
    if name == "rewards":
        return ", ".join(f"{part['key']} {part['value']}" for part in value)
    return str(value) if not isinstance(value, list) else json.dumps(value, default=str)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))


def _newlines(text: str) -> str:
    return text.replace("\r\n", "\n")


def _harmless(character: str) -> bool:
    if character in "\n\t":
        return True
    return unicodedata.category(character) not in ("Cc", "Zl", "Zp") and ord(character) not in _DIRECTION


def _spelled(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
