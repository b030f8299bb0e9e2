"""Sequences that samplers recorded (`record_stability_info`), for losses that need the sampler's
probabilities. Training requests name a recorded sequence by its `sequence_id`."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sweeper.engine.array_types import Floats, Ints
from sweeper.engine.batches import Datum, Span
from sweeper.engine.errors import RequestError
from sweeper.engine.losses import RECORDED
from sweeper.engine.sampling import Sampled

UNUSED_SECONDS = 86400.0
"""Seconds that a sequence is kept after it was sampled or last trained on, as on Tinker's
service."""


@dataclass
class _Sequence:
    """A sampled sequence. `prompt` is the length of its prompt. `logprobs` are the logprobs with
    which the tokens were drawn. `used` is the time of the last use."""

    prompt: int
    tokens: Ints
    logprobs: Floats
    used: float


class Records:
    """The sampled sequences that clients asked to record, by session and id. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._sessions: dict[str, dict[str, _Sequence]] = {}

    def add(self, session: str, identity: str, prompt: int, drawn: Sampled) -> None:
        """Record a sampled sequence. `prompt` is the length of the sequence's prompt."""
        tokens = np.array(drawn.tokens, np.int32)
        logprobs = np.array(drawn.logprobs, np.float32)
        with self._lock:
            sequences = self._sessions.setdefault(session, {})
            sequences[identity] = _Sequence(prompt, tokens, logprobs, self._clock())

    def end(self, session: str) -> None:
        """Forget the sequences of a session."""
        with self._lock:
            self._sessions.pop(session, None)

    def sweep(self) -> None:
        """Forget the sequences that have not been used for a day."""
        before = self._clock() - UNUSED_SECONDS
        with self._lock:
            for session, sequences in list(self._sessions.items()):
                used = {
                    name: sequence
                    for name, sequence in sequences.items()
                    if sequence.used >= before
                }
                self._sessions[session] = used
                if not used:
                    del self._sessions[session]

    def completed(self, session: str, datum: Datum, number: int) -> Datum:
        """Return `datum`, extended by the logprobs with which its target tokens were sampled.
        Tokens that were not sampled get the weight 0. Raises RequestError if the spans are missing
        or do not match the recorded sequences, or if a token that was not sampled has a nonzero
        advantage."""
        where = f"data[{number}]"
        targets = datum.inputs.get("target_tokens")
        if not datum.spans or targets is None or targets.ndim != 1:
            raise RequestError(
                f"{where}: this loss needs provenance for each target token: use "
                "Datum.with_provenance"
            )
        recorded, drawn = np.zeros(len(targets), np.float32), np.zeros(len(targets), bool)
        at = 0
        for span in datum.spans:
            place = slice(at, at + span.length)
            at += span.length
            sequence = self._find(session, span, where)
            if not span.sampled:
                continue
            part = slice(span.offset, span.offset + span.length)
            if not np.array_equal(sequence.tokens[part], targets[place]):
                raise RequestError(
                    f"{where}: the target tokens {place.start} to {place.stop} are not the tokens "
                    f"{part.start} to {part.stop} of the sequence {span.sequence}"
                )
            recorded[place], drawn[place] = sequence.logprobs[part], True
        if at != len(targets):
            raise RequestError(
                f"{where}: the spans of its provenance cover {at} of {len(targets)} target tokens; "
                "they must cover each token once"
            )
        advantages = datum.inputs.get("advantages", np.zeros(0))
        if len(advantages) == at and np.any(advantages[~drawn]):
            raise RequestError(
                f"{where}: a token that was not sampled has an advantage: set this advantage to 0"
            )
        weights = datum.inputs.get("weights", np.ones(at, np.float32))
        weights = weights * drawn if weights.shape == drawn.shape else weights
        return datum._replace(inputs={**datum.inputs, RECORDED: recorded, "weights": weights})

    def _find(self, session: str, span: Span, where: str) -> _Sequence:
        """Return the recorded sequence of a span, and mark the sequence as used. Raises
        RequestError if the sequence does not exist or is shorter than the span."""
        with self._lock:
            sequence = self._sessions.get(session, {}).get(span.sequence)
            if sequence is not None:
                sequence.used = self._clock()
        if sequence is None:
            raise RequestError(
                f"{where}: no sequence {span.sequence!r} was recorded in this session in the last "
                "day: sample with record_stability_info=True"
            )
        length = len(sequence.tokens) if span.sampled else sequence.prompt
        if min(span.offset, span.length) < 0 or span.offset + span.length > length:
            raise RequestError(
                f"{where}: a span covers tokens {span.offset} to {span.offset + span.length}, but "
                f"the sequence {span.sequence} has {length} "
                f"{'sampled' if span.sampled else 'prompt'} tokens"
            )
        return sequence
