"""Makes ids and names of runs, as pure functions of a grid's content. An id is the first 12
hexadecimal digits of a SHA-256 (docs/grid.md); a name has only the keys that vary."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import cast

from sweeper.fields.nodes import scalar
from sweeper.sweep.names import MAX_NAME

_MAX_LABEL = 40

_SAFE = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9._+-]*\Z")
_WRITTEN = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z")
"""The form of a number that can appear in a name as it is written."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")

_SHORT = {
    "batch_size": "batch",
    "epochs": "epochs",
    "group_size": "group",
    "groups_per_batch": "groups",
    "kl_coef": "kl",
    "kl_penalty_coef": "kl",
    "learning_rate": "lr",
    "lora_rank": "rank",
    "loss_fn": "loss",
    "lr_schedule": "schedule",
    "max_length": "length",
    "max_steps": "steps",
    "max_tokens": "tokens",
    "model_name": "model",
    "num_epochs": "epochs",
    "num_substeps": "substeps",
    "optimizer": "opt",
    "temperature": "temp",
    "weight_decay": "wd",
}


def canonical(value: object) -> str:
    """Return the canonical text of a value. Equal numbers have equal texts, but a boolean never
    has the text of a number."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _canonical_float(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, object]", value)
        inside = ",".join(f"{json.dumps(k)}:{canonical(entries[k])}" for k in sorted(entries))
        return f"{{{inside}}}"
    return f"[{','.join(map(canonical, cast('Sequence[object]', value)))}]"


def _canonical_float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return str(int(value)) if value.is_integer() else repr(value)


def run_id(source: str, values: str, seed: str) -> str:
    """Return the id of a run, a hash of a JSON text.

    The arguments are parts of this text. `source` is the recipe (`"recipe":"sft"`) or the command.
    `values` are the values (`"lr":1`), sorted by key and joined by commas. `seed` is the seed
    (`null` for none).
    """
    return _hash(f'{{{source},"seed":{seed},"values":{{{values}}}}}', 12)


def _hash(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _number(value: float) -> str:
    """Write a number with an exponent (`1e-4`) if that is shorter than a decimal (`0.0001`). For a
    number of 1 or more, an exponent must save more than two characters."""
    digits = repr(value)
    if "e" in digits:
        mantissa, exponent = digits.split("e")
    else:
        mantissa, exponent = f"{value:.17e}".split("e")
        for precision in range(17):  # the shortest text that is read back exactly
            short = f"{value:.{precision}e}"
            if float(short) == value:
                mantissa, exponent = short.split("e")
                break
    scientific = f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    if "e" in digits:
        return scientific
    positional = digits.removesuffix(".0")
    saved = len(positional) - len(scientific)
    return scientific if saved > (0 if abs(value) < 1 else 2) else positional


def _label(value: object, written: str | None = None) -> str:
    """Return the label of a value for names. A float keeps the spelling that it has in the grid
    (`written`). Labels of different values may be equal (`a/x` and `b/x`), or differ only in case.
    `value_labels` adds hashes to such labels."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) < 10**_MAX_LABEL:
        return str(value)
    if isinstance(value, float):
        if written is not None and len(written) <= _MAX_LABEL and _WRITTEN.match(written):
            return written
        return _number(value) if math.isfinite(value) else str(value)
    if isinstance(value, str) and (plain := _plain_part(value)):
        return plain
    return _hashed(value, 6)


def _is_plain(text: str) -> bool:
    """Return whether a string can be a label: it is short, has only safe characters, and looks like
    no number, boolean or null."""
    if len(text) > _MAX_LABEL or not _SAFE.match(text):
        return False
    if text.lower() in ("none", "true", "false", "null", "nan", "inf"):
        return False
    return isinstance(scalar(text), str)


def _plain_part(text: str) -> str | None:
    """Return the label of a string: the whole string, or the end of a path such as `Qwen/Qwen3-8B`.
    Return None if neither can be a label."""
    if _is_plain(text):
        return text
    above, _, last = text.rpartition("/")
    return last if above and "://" not in text and _is_plain(last) else None


def _hashed(value: object, digits: int) -> str:
    text = canonical(value)
    if isinstance(value, float | int) and not isinstance(value, bool):
        shown = _label(value) if len(text) <= _MAX_LABEL else text
    elif isinstance(value, str):
        shown = value
    else:
        shown = re.sub(r'[\[\]{}"]', "", text)
    # The end of a path is more informative than its beginning.
    shown = _UNSAFE.sub("_", shown[-200:]).strip("._-")[-24:].lstrip("._-")
    return f"{shown}~{_hash(text, digits)}"


def value_labels(
    values: Iterable[object], written: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Map the canonical texts of all values of one axis to labels. `written` maps canonical texts
    of numbers to the spelling in the grid. Hashes are added where labels would be equal in lower
    case, so that all labels differ."""
    distinct = {canonical(value): value for value in values}
    labels = {text: _label(value, written.get(text)) for text, value in distinct.items()}
    for digits in (6, 12, 64):
        folded: dict[str, list[str]] = {}
        for text, label in labels.items():
            folded.setdefault(label.casefold(), []).append(text)
        clashes = [text for texts in folded.values() if len(texts) > 1 for text in texts]
        if not clashes:
            break
        for text in clashes:
            ending = isinstance(distinct[text], str) and labels[text] != distinct[text]
            if ending or labels[text] != labels[text].casefold() or digits > 6:
                labels[text] = _hashed(distinct[text], digits)
    return labels


def short_form(field: str) -> str:
    """Return the customary abbreviation of a field's name, else the name."""
    return _SHORT.get(field, field)


def key_labels(keys: Sequence[str], taken: str = "seed") -> dict[str, str]:
    """Map each key to a short label: its last dotted part, abbreviated if possible. A label that
    equals another label, or `taken` (the label of the seed), is replaced by the whole key."""
    short: dict[str, str] = {}
    for key in keys:
        short[key] = _clip(short_form(key.rpartition(".")[2]))
    for whole in (_clip, _clip_hashed):
        while clashes := [key for key in _clashing(short, taken) if short[key] != whole(key)]:
            for key in clashes:
                short[key] = whole(key)
    return short


def _clip(key: str) -> str:
    return key if len(key) <= _MAX_LABEL else _clip_hashed(key)


def _clip_hashed(key: str) -> str:
    return f"{key[-24:].lstrip('._-')}~{_hash(key, 6)}"


def _clashing(short: Mapping[str, str], taken: str) -> list[str]:
    folded: dict[str, list[str]] = {taken.casefold(): [taken]}
    for key, label in short.items():
        if key != taken:
            folded.setdefault(label.casefold(), []).append(key)
    return [key for keys in folded.values() if len(keys) > 1 for key in keys if key in short]


def suffixed(name: str, text: str, limit: int = MAX_NAME) -> str:
    """Return `name` with a hash of `text` at the end, because `name` is already in use."""
    begin = name[: limit - 11].rstrip("=,._-") or "base"
    return f"{begin}~{_hash(text, 10)}"
