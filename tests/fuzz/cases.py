"""Hypothesis strategies for odd grids: random grids of the grid language, with mistakes; random
pieces of YAML; and the grids of the repository with some of their bytes changed."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
_PROGRAM = "sh"
"""An installed program: a plan refuses a grid whose command does not exist."""
_WORDS = ("a", "b", "opt", "opt.lr", "opt.wd", "learning_rate", "lora_rank", "seed", "task")
_ODD = ("", "<<", "a..b", "A-b", "log_path", "1", "ключ", "a" * 300, "x.y.z.w", "run", "null")
_TOKENS = (
    *("[", "]", "{", "}", ", ", ": ", "- ", "? ", "\n", "\n  ", "\n    ", "\t", "&a ", "*a"),
    *("!!x ", "!!python/object:os.system ", "| \n", "> \n", "'", '"', "#", "---\n", "...\n"),
    *("%YAML 1.1\n", "<<: *a", "\\u0000", "\x00", "\ufeff", "\r\n", "\u2028", "${a}", "${", "$${"),
    *("~", "1e999", "0x1F", "010", ".inf", "recipe: sft\n", f"command: [{_PROGRAM}]\n", "grid:"),
    *("base:", "when:", "zip:", "random:", "seeds: ", "if:", "samples: 9", "axes:"),
    *("uniform: [0, 1]", "extends: ", "name: "),
)
_SPLICES = (*(t.encode() for t in _TOKENS), b"\xff", b"\xc3", b"9" * 320, b"[" * 40, b"x: " * 20)


def _scalars() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.sampled_from([None, True, False, 0, 1, 1.0, -1, 1e-4, "x", "adam", "sgd", "sorting"]),
        st.integers(-(10**20), 10**20),
        st.floats(),
        st.text(max_size=12),
        st.sampled_from(["${a}", "${b}", "x${opt.lr}y", "${seed}", "${opt}", "${", "$${a}", "{a}"]),
        st.sampled_from(["a" * 5000, "/dev/zero", "../..", "no", "1e-4", "0x10", "2021-01-01"]),
    )


def _values() -> st.SearchStrategy[Any]:
    keys = st.sampled_from([*_WORDS, "lr", "wd"])
    return st.recursive(
        _scalars(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=8,
    )


def _keys() -> st.SearchStrategy[str]:
    usual = st.sampled_from(_WORDS)
    return st.one_of(usual, usual, usual, usual, st.sampled_from(_ODD))


def _mapping(values: st.SearchStrategy[Any], most: int = 4) -> st.SearchStrategy[Any]:
    return st.dictionaries(_keys(), values, max_size=most)


def _axes() -> st.SearchStrategy[Any]:
    return _mapping(st.lists(_values(), max_size=5) | _scalars(), 3)


def _drawn() -> st.SearchStrategy[Any]:
    kinds = st.sampled_from(["uniform", "log_uniform", "integers", "log_integers", "choice", "x"])
    axes = _mapping(st.dictionaries(kinds, st.lists(_scalars(), max_size=3), max_size=2), 3)
    samples = st.one_of(st.integers(0, 50), _scalars())
    return st.fixed_dictionaries({"axes": axes}, optional={"samples": samples, "seed": _scalars()})


def _sections() -> dict[str, st.SearchStrategy[Any]]:
    when = st.fixed_dictionaries(
        {"if": _mapping(_values(), 2)},
        optional={"grid": _axes(), "base": _mapping(_values(), 2), "random": _drawn()},
    )
    holes = st.sampled_from(
        ["x", "{a}", "{b}", "{seed}", "{log_path}", "{{", "}", "{", "{a.b}", "{}"]
    )
    launch = st.sampled_from(
        ["backend", "max_parallel", "timeout", "env", "window", "lease", "cwd"]
    )
    return {
        "base": _mapping(_values()),
        "grid": _axes(),
        "zip": st.lists(_axes(), max_size=2),
        "random": _drawn(),
        "when": st.lists(when, max_size=4),
        "include": st.lists(_mapping(_values(), 3), max_size=3),
        "exclude": st.lists(_mapping(_values(), 3), max_size=3),
        "seeds": st.one_of(st.integers(-1, 30), st.lists(st.integers(0, 5)), _values()),
        "metric": st.fixed_dictionaries({}, optional={"name": _scalars(), "goal": _scalars()}),
        "secrets": st.lists(_scalars(), max_size=2),
        "launch": st.dictionaries(launch, _values(), max_size=3),
        "extends": st.sampled_from(
            ["language/when.yaml", "quickstart.yaml", "grid.yaml", ".", "/"]
        ),
        "name": _scalars(),
        "service": st.sampled_from(["none", "local", "tinker", 1]),
        "command": st.lists(st.just(_PROGRAM) | holes, max_size=4),
    }


def language() -> st.SearchStrategy[bytes]:
    """Return grids that are mappings, whose sections mostly have the right type."""
    from sweeper.grid.overrides import flow

    recipe = st.sampled_from(
        ["sft", "recipes.sft", "sft:Config", "language/toy.py", "nope", "os:system", ""]
    )
    optional = {key: st.one_of(s, s, s, s, _values()) for key, s in _sections().items()}
    by_recipe = st.fixed_dictionaries({"recipe": recipe}, optional=optional)
    command = optional.pop("command")
    whole = by_recipe | st.fixed_dictionaries({"command": command}, optional=optional)
    return whole.map(
        lambda grid: "".join(f"{k}: {flow(v)}\n" for k, v in grid.items()).encode(
            "utf-8", "surrogatepass"
        )
    )


def tame() -> st.SearchStrategy[bytes]:
    """Return grids most of which can be planned."""
    from sweeper.grid.overrides import flow

    def axes(names: str) -> st.SearchStrategy[Any]:
        value = st.integers(-3, 40) | st.text("abc/ A~", max_size=3)
        values = st.lists(value, min_size=1, max_size=9, unique=True)
        return st.dictionaries(st.sampled_from(names), values, max_size=3)

    made = ["${a}", "v${b}", "${seed}", "$${a}", {"x": 1, "y": "${a}"}, ["${b}", 2]]
    held = st.integers(0, 9) | st.sampled_from(made)
    base = {"a": st.integers(0, 2), "b": st.integers(0, 2), "m": held, "n": held}
    where = st.dictionaries(st.sampled_from("abmn"), st.integers(0, 2), min_size=1, max_size=2)
    entry = st.fixed_dictionaries({"if": where, "grid": axes("pqr")})
    drawn = st.fixed_dictionaries(
        {
            "samples": st.integers(1, 60),
            "seed": st.integers(),
            "axes": st.just({"u": {"uniform": [0, 1]}, "w": {"log_integers": [1, 99]}}),
        }
    )
    fixed = {"command": st.just([_PROGRAM, "{a}"]), "base": st.fixed_dictionaries(base)}
    optional = {
        "grid": axes("efg"),
        "when": st.lists(entry, max_size=3),
        "random": drawn,
        "include": st.lists(where, max_size=3),
        "exclude": st.lists(where, max_size=2),
        "seeds": st.integers(1, 9),
        "name": st.just("tame"),
        "launch": st.just({"window": "{a} {name}"}),
    }
    whole = st.fixed_dictionaries(fixed, optional=optional)
    return whole.map(lambda grid: flow(grid).encode("utf-8", "surrogatepass"))


def soup() -> st.SearchStrategy[bytes]:
    """Return pieces of YAML in any order."""
    pieces = st.lists(st.sampled_from(_TOKENS) | st.text(max_size=3), max_size=60)
    return pieces.map(lambda parts: "".join(parts).encode("utf-8", "surrogatepass"))


def mutated(grids: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return grids with bytes changed, removed, inserted, repeated, or copied from another grid."""
    return st.builds(_mutate, st.just(grids), st.sampled_from(grids), st.integers(0, 2**64))


def _mutate(grids: Sequence[bytes], grid: bytes, seed: int) -> bytes:
    chance = random.Random(seed)
    text = bytearray(grid)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(len(text) + 1)
        end = min(len(text), at + chance.choice((1, 1, 4, 40, 400)))
        what = chance.randrange(7)
        if what == 0 and at < len(text):
            text[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            del text[at:end]
        elif what == 2:
            text[at:at] = chance.choice(_SPLICES)
        elif what == 3:
            text[at:end] = text[at:end] * chance.choice((2, 3, 50, 2000))
        elif what == 4:
            other = chance.choice(grids)
            begin = chance.randrange(len(other) + 1)
            text[at:at] = other[begin : begin + chance.choice((4, 40, 400))]
        elif what == 5:
            lines = bytes(text).splitlines(keepends=True)
            chance.shuffle(lines)
            text = bytearray(b"".join(lines))
        else:
            text[at:end] = chance.randbytes(chance.choice((1, 8)))
        text = text[:200_000]
    return bytes(text)


def overrides() -> st.SearchStrategy[list[str]]:
    """Return overrides for the command line, valid and invalid."""
    usual = ["a=1", "a=[1,2]", "~a", "seeds=2", "~seeds", "launch.retries=1", "opt={lr: 1}"]
    odd = ["=", "a", "~", "a=[", "launch=1", "random.samples=3", "~random", "seed=3", "a=${b}"]
    given = st.sampled_from(usual) | st.sampled_from(odd) | st.text(max_size=8)
    plain = given.filter(lambda text: "\0" not in text)
    return st.one_of(st.just([]), st.just([]), st.lists(plain, max_size=3))
