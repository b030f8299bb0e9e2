"""Checks the words in lists of a grid: words of a fixed set, and words of commands, which have
placeholders in braces."""

import re
from collections.abc import Collection, Sequence

from sweeper.fields.kinds import Item, nearest
from sweeper.recipe.command_template import HOLE


def one_of(words: Collection[str]) -> Item:
    """Return the check for a word that must be one of `words`."""

    def wrong(word: str) -> str | None:
        if word in words:
            return None
        return f"{word[:60]!r} is not one of {', '.join(words)}{nearest(word, words)}"

    return Item({"enum": list(words)}, wrong)


def word_with(holes: Sequence[str]) -> Item:
    """Return the check for a word of a command. The word may contain the names in `holes` in
    braces, as placeholders. `{{` and `}}` are literal braces. A number is also a valid word."""

    def wrong(word: str) -> str | None:
        if not word:
            return "a string in the list is empty"
        for match in HOLE.finditer(word):
            hole = match.group(1)
            if match.group() in ("{", "}") or hole == "":
                return "a stray brace; write {{ for one"
            if hole is not None and hole not in holes:
                return (
                    f"no value for {{{hole[:60]}}}; write one of {', '.join(holes)}"
                    f"{nearest(hole, holes)}"
                )
        return None

    names = "|".join(map(re.escape, holes))
    return Item({"pattern": rf"^([^{{}}]|\{{\{{|\}}\}}|\{{({names})\}})+$"}, wrong, numbers=True)
