"""Credentials never reach the disk: keys and values that look like one are replaced at write.

The digest in ``<redacted:digest8>`` lets two runs be compared without showing the secret.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

_SECRET_KEYS = (
    "api_key",
    "apikey",
    "password",
    "passwd",
    "secret",
    "access_key",
    "secret_key",
    "private_key",
    "credential",
    "credentials",
)
_TOKEN_OWNERS = ("hf", "hub", "auth", "access", "api", "refresh", "bearer", "session", "github", "gitlab", "wandb")
_SECRET_KEY = re.compile(rf"(?:.*_)?(?:{'|'.join([*_SECRET_KEYS, *(f'{owner}_token' for owner in _TOKEN_OWNERS)])})")
_SECRET_VALUE = re.compile(
    r"""
      \b hf_[A-Za-z0-9]{20,}
    | \b sk-[A-Za-z0-9_-]{16,}
    | \b gh[pousr]_[A-Za-z0-9]{20,}
    | \b AKIA[A-Z0-9]{12,}
    """,
    re.VERBOSE,
)
_URL_PASSWORD = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")


def is_secret_key(key: str) -> bool:
    """Whether the last part of a dotted key names a credential."""
    return _SECRET_KEY.fullmatch(key.rpartition(".")[2].lower().replace("-", "_")) is not None


def redacted(secret: str) -> str:
    """What is written in place of `secret`."""
    return f"<redacted:{hashlib.sha256(secret.encode(errors='surrogatepass')).hexdigest()[:8]}>"


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line with the values of ``--api-key VALUE``, ``--api-key=VALUE`` and ``api_key=VALUE`` replaced."""
    safe: list[str] = []
    before = ""
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and is_secret_key(key.lstrip("-+~")):
            safe.append(f"{key}={redacted(value)}")
        elif before.startswith("-") and is_secret_key(before.lstrip("-")) and not argument.startswith("-"):
            safe.append(redacted(argument))
        else:
            safe.append(redact_text(argument))
        before = argument
    return safe


def redact_text(text: str) -> str:
    """`text` with everything in it that looks like a credential replaced."""
    text = _SECRET_VALUE.sub(lambda match: redacted(match[0]), text)
    return _URL_PASSWORD.sub(lambda match: redacted(match[0]), text)
