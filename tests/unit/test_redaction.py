"""Secrets: which values are secret, and that a log masks them wherever it is cut."""

import itertools
import json
import random

from sweeper.common.redaction import Redactor, is_secret_name, secret_values


def _shown(redactor: Redactor, pieces: list[bytes]) -> bytes:
    return b"".join(redactor.feed(piece) for piece in pieces) + redactor.end()


def _cut(data: bytes, random_: random.Random) -> list[bytes]:
    cuts = sorted(random_.choices(range(len(data) + 1), k=random_.randint(0, 6)))
    ends = [0, *cuts, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(ends)]


def test_secrets_are_masked_wherever_the_stream_is_cut() -> None:
    """Random texts, compared with a reference that sees the whole text."""
    random_ = random.Random(5)
    for _ in range(1500):
        secrets = ["".join(random_.choices("ab", k=random_.randint(2, 5))) for _ in range(2)]
        data = "".join(random_.choices("abc", k=random_.randint(0, 30)))
        spans = sorted(
            (at, at + len(secret))
            for secret in set(secrets)
            for at in range(len(data))
            if data.startswith(secret, at)
        )
        merged: list[tuple[int, int]] = []
        for start, end in spans:
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        expected, at = "", 0
        for start, end in merged:
            expected += data[at:start] + "***"
            at = end
        expected += data[at:]
        shown = _shown(Redactor(secrets), _cut(data.encode(), random_))
        assert shown.decode() == expected, (secrets, data)


def test_quoted_and_encoded_secrets_are_masked() -> None:
    secret = 'p/ä"s\\s\nw d'
    forms = [secret, json.dumps(secret), repr(secret), "x=p%2F%C3%A4%22s%5Cs%0Aw%20d"]
    shown = _shown(Redactor([secret]), ["|".join(forms).encode()]).decode()
    assert shown == "***|\"***\"|'***'|x=***"
    assert Redactor([secret]).text(f"no {secret}!") == "no ***!"


def test_the_redactor_holds_back_little() -> None:
    redactor, fed, shown = Redactor(["abcabcabcd"]), 0, 0
    for _ in range(1000):
        fed += 300
        shown += len(redactor.feed(b"abc" * 100))
        assert fed - shown < 10


def test_secret_values_are_named_variables_and_secret_names() -> None:
    environment = {
        "GIVEN": "1234",
        "SHORT": "123",
        "WANDB_API_KEY": "12345678",
        "hf_token": "abcdefgh",
        "DB_PASSWORD": "1234567",  # too short: a log may contain it by chance
        "MAX_TOKENS": "1000000000",
        "TOKENIZERS_PARALLELISM": "false-----",
        "HOME": "/home/me/somewhere",
    }
    assert secret_values(environment, ["GIVEN", "SHORT"]) == ["1234", "12345678", "abcdefgh"]


_SECRETS = """
PGPASSWORD OPENAI_APIKEY OPENAI_API_KEY OPENAI_API_KEY_2 OPENAI_API_KEY_PROD ANTHROPIC_API_KEY
AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN HF_TOKEN HF_TOKEN_READ HUGGING_FACE_HUB_TOKEN HFTOKEN
WANDB_API_KEY COMET_API_KEY NEPTUNE_API_TOKEN GITHUB_TOKEN GH_TOKEN GITHUB_PAT NPM_TOKEN
MYSQL_PWD MYSQL_ROOT_PASSWORD DB_PASS SMTP_PASSWD SSHPASS REDISCLI_AUTH RESTIC_PASSWORD
BORG_PASSPHRASE AZURE_CLIENT_SECRET AZURE_STORAGE_KEY AZURE_STORAGE_CONNECTION_STRING
SLACK_WEBHOOK_URL SECRET_KEY_BASE DJANGO_SECRET_KEY JWT_SECRET PRIVATE_KEY
GOOGLE_APPLICATION_CREDENTIALS TWILIO_AUTH_TOKEN TINKER_API_KEY SWEEPER_ENGINE_TOKEN openai.api_key
openaiApiKey api-key --api-key service/password SSH_PRIVATE_KEY ENCRYPTIONKEY
"""
_INNOCENT = """
TOKENIZERS_PARALLELISM KEYBOARD KEYBOARD_LAYOUT MONKEY DONKEY TURKEY HOTKEY HOT_KEY KEYMAP PWD
OLDPWD INIT_CWD MAX_TOKENS NUM_TOKENS TOKENS_PER_STEP TOKENIZER EOS_TOKEN PAD_TOKEN SSH_AUTH_SOCK
SSH_ASKPASS XAUTHORITY GIT_AUTHOR_NAME GNOME_KEYRING_CONTROL BYPASS COMPASS PASSENGERS
AWS_WEB_IDENTITY_TOKEN_FILE AWS_SHARED_CREDENTIALS_FILE AWS_ACCESS_KEY_ID RESTIC_PASSWORD_FILE
SECRETARY PASSWORD_LENGTH PUBLIC_KEY METRIC_KEY PATH PATTERN PAT SSL_KEY_FILE KEY_REPEAT TERM
TOKEN_COUNT AUTHOR AUTHORITY HOME EDITOR PASSIVE HF_HUB_OFFLINE CUDA_VISIBLE_DEVICES LR max_tokens
"""


def test_secret_names_are_recognised() -> None:
    assert [name for name in _SECRETS.split() if not is_secret_name(name)] == []
    assert [name for name in _INNOCENT.split() if is_secret_name(name)] == []


def test_a_password_in_an_address_is_a_secret() -> None:
    environment = {
        "DATABASE_URL": "postgres://me:correct%2Dhorse@host/db",
        "HTTPS_PROXY": "http://user:short@proxy:3128",
        "PIP_INDEX_URL": "https://ghp_0123456789abcdefghij@index.example/simple",
        "DOCS": "https://example.org/a@b",
    }
    secrets = secret_values(environment, [])
    assert secrets == ["correct%2Dhorse", "correct-horse", "ghp_0123456789abcdefghij"]
