"""TensorBoard event files as bytes: the same entries give the same bytes.

- Imported only once a `TensorboardSink` is made: it needs tensorboard and google-crc32c.
- One record holds the values of one (step, wall time), at most `MAX_VALUES` of them.
- Scalars are ``simple_value``, a float32; hyperparameters, their end and texts are stock summaries.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

import google_crc32c
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.hparams import metadata as hparams_metadata, plugin_data_pb2, summary_v2
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.util import tensor_util

MAX_VALUES = 64
HPARAMS_TAG = hparams_metadata.SESSION_START_INFO_TAG
END_TAG = hparams_metadata.SESSION_END_INFO_TAG

#: beyond these a double, which is all the plugin knows, is another number
_EXACT = 2**53
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")


class Entry(NamedTuple):
    """One value in an event file. TensorBoard shows one a (tag, step)."""

    tag: str
    step: int
    wall_time: float
    """Seconds since 1970."""
    content: float | bytes
    """A scalar, or a serialised ``Summary.Value``."""

    @property
    def is_text(self) -> bool:
        """Whether it is a text, neither a scalar nor one of the two entries of the hyperparameters."""
        return isinstance(self.content, bytes) and self.tag not in (HPARAMS_TAG, END_TAG)


def header(wall_time: float) -> bytes:
    """The first record of a file."""
    return _record(event_pb2.Event(wall_time=wall_time, file_version="brain.Event:2"))


def encode(entries: Iterable[Entry]) -> bytes:
    """Entries as records, in order of step and, within a step, of time and place."""
    records = []
    ordered = sorted(entries, key=lambda entry: (entry.step, entry.wall_time))
    for (step, wall_time), group in groupby(ordered, key=lambda entry: (entry.step, entry.wall_time)):
        event = event_pb2.Event(wall_time=wall_time, step=step)
        for entry in group:
            if len(event.summary.value) == MAX_VALUES:
                records.append(_record(event))
                event = event_pb2.Event(wall_time=wall_time, step=step)
            if isinstance(entry.content, bytes):
                event.summary.value.add().ParseFromString(entry.content)
            else:
                event.summary.value.add(tag=entry.tag, simple_value=entry.content)
        records.append(_record(event))
    return b"".join(records)


def decode(data: bytes) -> Iterator[Entry]:
    """The entries of a whole file made of `header` and `encode`."""
    offset = 0
    while offset < len(data):
        (length,) = _LENGTH.unpack_from(data, offset)
        start = offset + _LENGTH.size + _CRC.size
        event = event_pb2.Event.FromString(data[start : start + length])
        for value in event.summary.value:
            scalar = value.WhichOneof("value") == "simple_value"
            content = value.simple_value if scalar else value.SerializeToString(deterministic=True)
            yield Entry(value.tag, event.step, event.wall_time, content)
        offset = start + length + _CRC.size


def text_entry(tag: str, step: int, wall_time: float, markdown: str) -> Entry:
    """A text for the text plugin, which renders Markdown."""
    value = summary_pb2.Summary.Value(
        tag=tag,
        tensor=tensor_util.make_tensor_proto(markdown.encode(), shape=[]),
        metadata=text_metadata.create_summary_metadata(display_name="", description=""),
    )
    return Entry(tag, step, wall_time, value.SerializeToString(deterministic=True))


def joined_texts(first: Entry, second: Entry) -> Entry:
    """Two texts of one (tag, step) as one."""
    texts = [_text(entry) for entry in (first, second)]
    return text_entry(second.tag, second.step, second.wall_time, "\n\n".join(texts))


def hparams_entry(values: Mapping[str, Any], run_uid: str, started: float, wall_time: float) -> Entry:
    """The hyperparameters of a run; None is left out, what the plugin does not know is JSON text."""
    known = {name: _hparam(value) for name, value in values.items() if value is not None}
    summary = summary_v2.hparams_pb(known, trial_id=run_uid, start_time_secs=started)
    return _hparams_plugin_entry(HPARAMS_TAG, _plugin_data(summary.value[0]), wall_time)


def hparams_of(entry: Entry) -> tuple[dict[str, Any], float]:
    """The hyperparameters and the start of the run in an entry made by `hparams_entry`."""
    info = _plugin_data(summary_pb2.Summary.Value.FromString(entry.content)).session_start_info
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in info.hparams.items()}
    return values, info.start_time_secs


def end_entry(*, succeeded: bool, ended: float) -> Entry:
    """The end of a run with its status."""
    status = "STATUS_SUCCESS" if succeeded else "STATUS_FAILURE"
    info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=ended)
    return _hparams_plugin_entry(END_TAG, plugin_data_pb2.HParamsPluginData(session_end_info=info), ended)


def _hparams_plugin_entry(tag: str, data: plugin_data_pb2.HParamsPluginData, wall_time: float) -> Entry:
    # the stock function serialises a map in no particular order
    metadata = summary_pb2.SummaryMetadata()
    metadata.plugin_data.plugin_name = hparams_metadata.PLUGIN_NAME
    metadata.plugin_data.content = data.SerializeToString(deterministic=True)
    value = summary_pb2.Summary.Value(tag=tag, metadata=metadata, tensor=hparams_metadata.NULL_TENSOR)
    return Entry(tag, 0, wall_time, value.SerializeToString(deterministic=True))


def _plugin_data(value: summary_pb2.Summary.Value) -> plugin_data_pb2.HParamsPluginData:
    return plugin_data_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content)


def _hparam(value: Any) -> bool | float | str:
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)) and math.isfinite(value) and abs(value) <= _EXACT:
        return value
    return json.dumps(value)


def _text(entry: Entry) -> str:
    value = summary_pb2.Summary.Value.FromString(entry.content)
    return str(value.tensor.string_val[0].decode())


def _record(event: event_pb2.Event) -> bytes:
    payload = event.SerializeToString(deterministic=True)
    length = _LENGTH.pack(len(payload))
    return b"".join((length, _CRC.pack(_masked_crc(length)), payload, _CRC.pack(_masked_crc(payload))))


def _masked_crc(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
