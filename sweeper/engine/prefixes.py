"""The cache of prompts: attention keys and values of the prompts that samplers have run through the
network, in blocks of tokens. A block depends only on the tokens up to its end, so the cache does
not change results."""

import itertools
import threading
from collections import OrderedDict
from typing import NamedTuple

from sweeper.engine.array_types import Floats

# Longer blocks need fewer calls. With shorter blocks, less is read again at the end of a prompt.
# See `tests/bench/engine_turns.py`.
BLOCK = 64
BYTES = 256 * 2**20  # half a million positions of the tiny model

_ROOT = 0
_Key = tuple[int, int, bytes]


class CachedBlock(NamedTuple):
    """The cached values of a block of L tokens: the attention keys and values of each layer (key
    heads x L x head size), and the last layer's output at the block's last position."""

    number: int
    cache: list[tuple[Floats, Floats]]
    last: Floats

    @property
    def nbytes(self) -> int:
        """The size of the arrays in bytes."""
        return self.last.nbytes + sum(keys.nbytes + values.nbytes for keys, values in self.cache)


class Prefixes:
    """A least-recently-used cache of blocks of tokens, limited in bytes. Thread-safe. Each block
    belongs to an owner: the id of the immutable weights that computed the block."""

    def __init__(self, most: int = BYTES) -> None:
        self._most, self._held = most, 0
        self._lock = threading.Lock()
        self._blocks: OrderedDict[_Key, CachedBlock] = OrderedDict()
        self._owned: dict[int, set[_Key]] = {}
        self._numbers = itertools.count(_ROOT + 1)

    @property
    def nbytes(self) -> int:
        """The size of all blocks in bytes."""
        return self._held

    def find(self, owner: int, parts: list[bytes]) -> list[CachedBlock]:
        """Return the cached blocks at the start of a prompt, up to the first block that is not
        cached. `parts` has the tokens of each block of the prompt."""
        matches, above = list[CachedBlock](), _ROOT
        with self._lock:
            keys = list[_Key]()
            for part in parts:
                key = owner, above, part
                block = self._blocks.get(key)
                if block is None:
                    break
                keys.append(key)
                matches.append(block)
                above = block.number
            for key in reversed(keys):  # so that a shared beginning is evicted last
                self._blocks.move_to_end(key)
        return matches

    def add(
        self,
        owner: int,
        above: CachedBlock | None,
        part: bytes,
        cache: list[tuple[Floats, Floats]],
        last: Floats,
    ) -> CachedBlock:
        """Cache the block with the tokens `part`, which follows the block `above` (None for the
        first block of a prompt). If the cache has the block already, return the cached one, else
        the new one."""
        with self._lock:
            key = owner, above.number if above else _ROOT, part
            block = self._blocks.get(key)
            if block is None:
                block = CachedBlock(next(self._numbers), cache, last)
                self._blocks[key] = block
                self._owned.setdefault(owner, set()).add(key)
                self._held += block.nbytes
            while self._held > self._most and self._blocks:
                self._drop(next(iter(self._blocks)))
            return block

    def forget(self, owner: int) -> None:
        """Drop all blocks of an owner."""
        with self._lock:
            for key in list(self._owned.get(owner, ())):
                self._drop(key)

    def _drop(self, key: _Key) -> None:
        self._held -= self._blocks.pop(key).nbytes
        owned = self._owned[key[0]]
        owned.discard(key)
        if not owned:
            del self._owned[key[0]]
