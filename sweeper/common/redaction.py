"""Removes the values of secrets from output, including the forms that JSON, `repr` and
percent-encoding give them. Values that are split, reversed or in base64 are not recognised. Uses
only the standard library."""

import json
import re
from collections.abc import Collection, Mapping, Sequence

MASK = b"***"
SHORTEST_NAMED = 4
"""Minimum length of a value that is replaced if its variable is declared as a secret."""
SHORTEST_GUESSED = 8
"""Minimum length of a password in an address, and of a value that is replaced only because its
variable's name suggests a secret."""

_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")

# The patterns below are strings, so that `re` compiles each only when it is first used: a worker
# needs few. The first one splits names into words: `OPENAI_APIKEY`, `openai.api_key`,
# `openaiApiKey`.
_WORD = r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])"
# A name that contains one of these belongs to a secret, even at the end of a word: PGPASSWORD.
_ANYWHERE = (
    r"(PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIALS?|SSHPASS"
    r"|(API|ACCESS|SECRET|PRIVATE|ACCOUNT|ENCRYPTION|SIGNING)_?KEY"
    r"|(ACCESS|AUTH|API|BEARER|REFRESH|SESSION)_?TOKEN|CONNECTION_?STRING|WEBHOOK(_URL)?)S?(_|$)"
)
# These count only as the last word, since many other names contain them: TOKENIZERS_PARALLELISM,
# KEY_REPEAT.
_AT_THE_END = frozenset({"KEY", "PASS", "AUTH", "JWT"})
_AT_THE_END_OF_MORE = frozenset({"PWD", "PAT"})  # PWD itself is a folder.
_QUALIFIED = "READ|WRITE|R[OW]|PROD|DEV|STAGING|TEST|MAIN|OLD|NEW|BACKUP|DEFAULT"
# A name that ends in one of these describes a secret (its location, size, ...) but does not hold
# it.
_ABOUT = (
    "FILE|PATH|DIR|DIRECTORY|FOLDER|IDS?|NAME|TYPE|LEN|LENGTH|SIZE|COUNT|TTL|EXPIRY|EXPIRES|TIMEOUT"
    "|URI|HOST|ENDPOINT|PROVIDER|MANAGER|BACKEND|ARN|REGION|SOCK|PROMPT|POLICY"
)
# After one of these words, a token or key is public: a tokenizer's special token, a column, a
# public key.
_KNOWN_TO_ALL = (
    "BOS|EOS|PAD|UNK|MASK|SEP|CLS|STOP|START|END|IMAGE|SPECIAL"
    "|PUBLIC|METRIC|REWARD|SORT|GROUP|PARTITION|FOREIGN|HOT"
)
_IN_ADDRESS = r"://(?:[^/@\s:]*:([^/@\s]+)|([^/@\s:]{20,}))@"


def secret_values(environment: Mapping[str, str], names: Collection[str]) -> list[str]:
    """Return the secrets in an environment: values of the variables `names`, values of variables
    whose names suggest a secret, and passwords in addresses (`postgres://me:password@host`). Short
    values are left out: see `SHORTEST_NAMED` and `SHORTEST_GUESSED`."""
    values: list[str] = []
    for name, value in environment.items():
        if name in names:
            shortest = SHORTEST_NAMED
        elif is_secret_name(name):
            shortest = SHORTEST_GUESSED
        else:
            values += _passwords(value)
            continue
        if len(value) >= shortest:
            values.append(value)
    return values


def is_secret_name(name: str) -> bool:
    """Return whether a variable, option or key with this name probably holds a secret."""
    words = [word.upper() for word in re.split(_WORD, name.rpartition("/")[2]) if word]
    while len(words) > 1 and re.fullmatch(_QUALIFIED, words[-1]):
        words.pop()
    if not words or re.fullmatch(_ABOUT, words[-1]):
        return False
    if re.search(_ANYWHERE, "_".join(words)):
        return True
    *before, last = words
    if before and re.fullmatch(_KNOWN_TO_ALL, before[-1]):
        return False
    return (
        last in _AT_THE_END
        or last.endswith("TOKEN")
        or (bool(before) and last in _AT_THE_END_OF_MORE)
    )


def _passwords(value: str) -> list[str]:
    """Return the passwords of addresses in a value, as written and percent-decoded."""
    if "://" not in value:
        return []
    from urllib.parse import unquote

    passwords = [index or other for index, other in re.findall(_IN_ADDRESS, value)]
    forms = {form for password in passwords for form in (password, unquote(password))}
    return sorted(form for form in forms if len(form) >= SHORTEST_GUESSED)


class Redactor:
    """A filter that replaces secrets in a stream of bytes, which arrives in pieces of any size. If
    a piece may end with the beginning of a secret, this end is returned with the next piece."""

    def __init__(self, values: Sequence[str]) -> None:
        self._needles = sorted({form for value in values for form in _forms(value)})
        self._held = b""
        # The number of bytes at the start of `_held` whose mask was already returned.
        self._covered = 0

    def feed(self, data: bytes) -> bytes:
        """Add a piece of the stream. Return the next part of the redacted stream."""
        if not self._needles:
            return data
        data = self._held + data
        return self._show(data, self._open(data))

    def end(self) -> bytes:
        """End the stream. Return the rest of the redacted stream."""
        return self._show(self._held, len(self._held))

    def text(self, text: str) -> str:
        """Return a text with its secrets replaced. The stream is not changed."""
        fresh = Redactor(())
        fresh._needles = self._needles
        data = text.encode("utf-8", "surrogateescape")
        return (fresh.feed(data) + fresh.end()).decode("utf-8", "surrogateescape")

    def _open(self, data: bytes) -> int:
        """Return the start of the longest end of `data` with which a secret begins. Return the
        length of `data` if there is none."""
        first = len(data)
        for needle in self._needles:
            at = max(0, len(data) - len(needle) + 1)
            while (at := data.find(needle[:1], at, first)) >= 0:
                if needle.startswith(data[at:]):
                    first = at
                    break
                at += 1
        return first

    def _spans(self, data: bytes) -> list[tuple[int, int]]:
        spans = [(0, self._covered)] if self._covered else []
        for needle in self._needles:
            at = -1
            while (at := data.find(needle, at + 1)) >= 0:
                spans.append((at, at + len(needle)))
        merged: list[tuple[int, int]] = []
        for start, end in sorted(spans):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged

    def _show(self, data: bytes, upto: int) -> bytes:
        """Return the data before the position `upto`, redacted. Keep the rest for the next call."""
        shown: list[bytes] = []
        at, covered = 0, max(0, self._covered - upto)
        for start, end in self._spans(data):
            if start >= upto:
                break
            shown.append(data[at:start])
            if start or not self._covered:  # otherwise the previous piece had the mask
                shown.append(MASK)
            at = min(end, upto)
            covered = max(covered, end - upto)
        shown.append(data[at:upto])
        self._held, self._covered = data[upto:], covered
        return b"".join(shown)


def _forms(value: str) -> set[bytes]:
    raw = value.encode("utf-8", "surrogateescape")
    texts = {
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
    }
    forms = {raw, *(text.encode("utf-8", "surrogatepass") for text in texts)}
    for safe in (_UNRESERVED, _UNRESERVED | {ord("/")}):
        forms.add(b"".join(b"%c" % byte if byte in safe else b"%%%02X" % byte for byte in raw))
    return forms
