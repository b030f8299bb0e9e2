"""What samplers have read before: keys and values of prompts, kept in blocks for prompts to come.

The next turn of an episode begins with all of the last one, and the prompts of a group are equal:
what they share need not be read again. A prompt is read in blocks of `BLOCK` positions, each of
which depends on the tokens up to its end and on nothing else, so that a block that was kept and one
that is computed anew are the same bits: what is kept changes no answer, only when it comes.

A block is found by the one before it and by its own tokens, so equal beginnings are held once.
"""

import itertools
import threading
from collections import OrderedDict
from typing import NamedTuple

from sweeper.engine.array_types import Floats

__all__ = ["BLOCK", "BYTES", "Kept", "Prefixes"]

# Longer blocks are read with fewer calls, shorter ones leave less to read again at the end of a
# prompt; `tests/bench/engine_turns.py` tells.
BLOCK = 64
BYTES = 256 * 2**20  # half a million positions of the tiny model

_ROOT = 0
_Key = tuple[int, int, bytes]


class Kept(NamedTuple):
    """A block: keys and values of each layer, KV x L x h, and the output of its last position."""

    number: int
    cache: list[tuple[Floats, Floats]]
    last: Floats

    @property
    def nbytes(self) -> int:
        """What it takes in memory, but for the names of its tokens."""
        return self.last.nbytes + sum(keys.nbytes + values.nbytes for keys, values in self.cache)


class Prefixes:
    """Blocks of many owners, within so many bytes: those that were used last. Any thread may ask.

    An owner is a set of weights that never changes; with the weights its blocks are forgotten.
    """

    def __init__(self, most: int = BYTES) -> None:
        self._most, self._held = most, 0
        self._lock = threading.Lock()
        self._blocks: OrderedDict[_Key, Kept] = OrderedDict()
        self._owned: dict[int, set[_Key]] = {}
        self._numbers = itertools.count(_ROOT + 1)

    @property
    def nbytes(self) -> int:
        """What is held."""
        return self._held

    def find(self, owner: int, parts: list[bytes]) -> list[Kept]:
        """The blocks that are kept of a prompt, given the tokens of each: those from its start on
        without a gap."""
        found, above = list[Kept](), _ROOT
        with self._lock:
            keys = list[_Key]()
            for part in parts:
                key = owner, above, part
                block = self._blocks.get(key)
                if block is None:
                    break
                keys.append(key)
                found.append(block)
                above = block.number
            for key in reversed(keys):  # what others begin with goes last
                self._blocks.move_to_end(key)
        return found

    def add(
        self,
        owner: int,
        above: Kept | None,
        part: bytes,
        cache: list[tuple[Floats, Floats]],
        last: Floats,
    ) -> Kept:
        """Keep the block that follows `above` (None: the first), and give what was kept."""
        with self._lock:
            key = owner, above.number if above else _ROOT, part
            block = self._blocks.get(key)
            if block is None:
                block = Kept(next(self._numbers), cache, last)
                self._blocks[key] = block
                self._owned.setdefault(owner, set()).add(key)
                self._held += block.nbytes
            while self._held > self._most and self._blocks:
                self._drop(next(iter(self._blocks)))
            return block

    def forget(self, owner: int) -> None:
        """Free all that is kept for an owner."""
        with self._lock:
            for key in list(self._owned.get(owner, ())):
                self._drop(key)

    def _drop(self, key: _Key) -> None:
        self._held -= self._blocks.pop(key).nbytes
        owned = self._owned[key[0]]
        owned.discard(key)
        if not owned:
            del self._owned[key[0]]
