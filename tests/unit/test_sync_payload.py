from __future__ import annotations

from rl_eventlog.sync.payload import NO_DIGEST, chain, decode, encode
from tests.support.payloads import payload


def test_a_payload_is_read_back_row_for_row() -> None:
    content = payload(
        points=[{"series": "loss", "step": 1, "value": float("inf")}, {"series": "kl", "step": 2, "value": 0.5}],
        params=[{"key": "lr", "value": "0.1"}],
        samples=[{"step": 1, "prompt": "1+1", "messages": [{"role": "user", "content": "1+1"}], "token_ids": [3, 4]}],
    )
    back = decode(encode(content))
    assert back.points.equals(content.points)
    assert back.params.equals(content.params)
    assert back.samples.equals(content.samples)


def test_one_content_has_one_form_however_it_is_cut() -> None:
    rows = [{"series": "loss", "step": step, "value": float(step)} for step in range(10)]
    whole = payload(points=rows)
    sliced = payload(points=[{"series": "other", "step": 0, "value": 0.0}, *rows])
    sliced = type(sliced)(sliced.points.slice(1), sliced.params, sliced.samples)
    assert encode(sliced) == encode(whole)


def test_the_digest_names_the_whole_history() -> None:
    first, second = encode(payload(params=[{"key": "a", "value": "1"}])), encode(payload())
    assert chain(chain(NO_DIGEST, first), second) != chain(chain(NO_DIGEST, second), second)
    assert len(chain(NO_DIGEST, first)) == 64
