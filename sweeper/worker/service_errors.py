"""Explains errors of a model service, with advice. Workers load this module only when their run has
failed."""

import re

_STATUS = re.compile(
    r"(?:error code:?|status(?:[ _]code)?|(?:client|server) error|http(?:/[\d.]+)?|http ?error)"
    r"[\s:=']*(4\d\d|5\d\d)\b",
    re.IGNORECASE,
)
_CLASSES = {
    "AuthenticationError": "401",
    "BillingError": "402",
    "PermissionDeniedError": "403",
    "NotFoundError": "404",
    "ConflictError": "409",
    "RateLimitError": "429",
    "InternalServerError": "500",
}
"""The HTTP status for each of the SDK's classes of errors."""
_CLASS = re.compile(rf"(?:^|\.)({'|'.join(_CLASSES)})\b")
_MEANING = {
    "401": "the service rejects the key: check TINKER_API_KEY where you launch",
    "402": "the account has no credit or no valid payment: settle it in the service's console, "
    "then `sweeper retry`",
    "403": "this key may not use the requested resource: check its account, TINKER_PROJECT_ID, and "
    "who owns the checkpoint",
    "404": "the service has no such model or checkpoint, or has removed it: `sweeper doctor "
    "--service` lists the models, and `sweeper checkpoints` the checkpoints",
    "409": "the request conflicts with another, or its session has ended: `sweeper retry` starts a "
    "new session from the last checkpoint",
    "429": "too many requests or sessions at once for this account: lower `max_parallel`, or set "
    "`[quota] slots`, then `sweeper retry`",
    "5xx": "the service itself failed, not your program: `sweeper doctor --service` says whether "
    "it works now, and `sweeper retry` continues from the last checkpoint",
    "nan": "a tensor is not finite: the training has diverged (lower learning_rate), or a "
    "reward, advantage or weight that you compute is NaN; find it with `launch --debug`",
    "long": "a prompt with its answer is longer than the model's context: shorten or filter the "
    "data, or lower max_tokens or max_length",
}
_NAN = re.compile(
    r"\bnans?\b.*(?:tensor|logprob|loss|grad|advantage|weight|input)"
    r"|(?:tensor|logprob|loss|grad|advantage|weight|input).*\bnans?\b"
    r"|out of range float values|(?:not|non-?) ?finite",
    re.IGNORECASE,
)
_LONG = re.compile(
    r"(?:exceed|too long|longer than|too many tokens|tokens; the context|and the model's context)"
    r".*(?:context|sequence|max_?tokens|length|tokens|is \d)"
    r"|(?:prompt|context|sequence).*(?:exceeds|too long|longer than|tokens; the context)",
    re.IGNORECASE,
)
_OF_A_SERVICE = re.compile(r"tinker|RequestFailedError|BadRequestError|error code", re.IGNORECASE)


def meaning(error: str) -> str | None:
    """Explain an error of a model service, with advice. `error` is the last error line of the
    program's output. Return None if the error is unknown."""
    kind = _kind(error)
    return None if kind is None else _MEANING[kind]


def _kind(error: str) -> str | None:
    if not _OF_A_SERVICE.search(error):
        return None
    if _NAN.search(error):
        return "nan"
    if _LONG.search(error):
        return "long"
    named, status = _CLASS.search(error), _STATUS.search(error)
    code = status[1] if status else _CLASSES[named[1]] if named else ""
    if code.startswith("5"):
        return "5xx"
    return code if code in _MEANING else None
