from __future__ import annotations

import pytest

from rl_eventlog.writer.redact import is_secret_key, redact_arguments, redact_text, redacted

NAMES = [
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
]
OWNERS = ["hf", "hub", "auth", "access", "api", "refresh", "bearer", "session", "github", "gitlab", "wandb"]
SECRET_KEYS = [*NAMES, *(f"{owner}_token" for owner in OWNERS)]


@pytest.mark.parametrize("key", SECRET_KEYS)
@pytest.mark.parametrize("shape", ["{}", "my_{}", "a.b.{}", "a.my-{}", "WANDB_{}", "x.Y_{}"])
def test_keys_of_credentials_are_known_in_every_dress(key: str, shape: str) -> None:
    assert is_secret_key(shape.format(key))
    assert is_secret_key(shape.format(key).upper())
    assert is_secret_key(shape.format(key.replace("_", "-")))


@pytest.mark.parametrize(
    "key",
    [
        "max_new_tokens",
        "pad_token_id",
        "eos_token",
        "tokenizer.name",
        "token_mult_prob_error",
        "bos_token",
        "token",
        "secret.level",
        "password_length",
        "nosecret",
        "keypassword",
        "tokens",
        "hf_tokens",
        "api_key_name",
        "secrets",
    ],
)
def test_what_only_sounds_like_one_survives(key: str) -> None:
    assert not is_secret_key(key)


@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "aB3" * 12,
        "sk-" + "aB3_-" * 6,
        "sk-proj-" + "a1" * 20,
        "ghp_" + "aB3" * 12,
        "gho_" + "aB3" * 12,
        "AKIA" + "ABCD1234" * 2,
    ],
)
def test_values_that_look_like_credentials_are_replaced_wherever_they_stand(secret: str) -> None:
    for text in (secret, f"token={secret} and more", f"'{secret}'", f"x\n{secret}\n"):
        assert redact_text(text) == text.replace(secret, redacted(secret))
        assert secret not in redact_text(text)


def test_passwords_in_addresses_are_replaced_and_hosts_stay() -> None:
    for address in ("https://user:hunter2@host:80/x", "https://:hunter2@host:80/x", "postgres://u:hunter2@host:80/x"):
        safe = redact_text(address)
        assert "hunter2" not in safe
        assert safe.startswith(address.partition("://")[0] + "://<redacted:")
        assert safe.endswith("@host:80/x")


@pytest.mark.parametrize(
    "text",
    [
        "</s>",
        "hf_short",
        "sky-blue-and-rather-long-word",
        "task-" * 10,
        "http://host:8080/a@b",
        "Qwen/Qwen2.5",
        "risk-adjusted-return-of-the-policy",
        "user:password@host",
        "AKIA",
        "mask-" + "a" * 40,
        "a://b/c:d@e",
    ],
)
def test_ordinary_text_survives(text: str) -> None:
    assert redact_text(text) == text


def test_the_digest_tells_secrets_apart_without_telling_them() -> None:
    assert redacted("a") == redacted("a") != redacted("b")
    assert redacted("hunter2") == "<redacted:f52fbd32>"
    assert redacted("\ud800").startswith("<redacted:")


def test_values_of_secret_arguments_are_replaced() -> None:
    line = ["train.py", "--api-key", "A", "--hf-token=B", "wandb.api_key=C", "+db.password=D", "--lr", "0.1"]
    line += ["--password", "--verbose", "eos_token=</s>", "https://u:E@h"]
    safe = redact_arguments(line)
    assert safe == [
        "train.py",
        "--api-key",
        redacted("A"),
        f"--hf-token={redacted('B')}",
        f"wandb.api_key={redacted('C')}",
        f"+db.password={redacted('D')}",
        "--lr",
        "0.1",
        "--password",
        "--verbose",
        "eos_token=</s>",
        f"https://{redacted('u:E')}@h",
    ]
