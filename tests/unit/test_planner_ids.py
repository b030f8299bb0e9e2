"""Ids of runs: the published vectors, and what an id does and does not depend on."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.grid.naming import canonical
from sweeper.planner.plan import plan

# Texts and the first digits of their SHA-256. A change makes all existing sweeps run again.
VECTORS = [
    ({"recipe": "sft"}, '{"recipe":"sft","seed":null,"values":{}}', "f4ff4dbb6488"),
    (
        {"recipe": "sft", "base": {"lora_rank": 8.0, "learning_rate": 1e-4}, "seeds": [0]},
        '{"recipe":"sft","seed":0,"values":{"learning_rate":0.0001,"lora_rank":8}}',
        "4946121d99cc",
    ),
    (
        {
            "recipe": "a/b.py:Config",
            "base": {
                "text": 'é"\n',
                "opt": {"name": "adam", "betas": [0.9, 0.999]},
                "flag": True,
                "none": None,
                "big": 1e300,
                "small": 2.5e-7,
                "inf": float("-inf"),
                "empty": {},
            },
        },
        '{"recipe":"a/b.py:Config","seed":null,"values":{"big":' + str(int(1e300)) + ","
        '"empty":{},"flag":true,"inf":-Infinity,"none":null,"opt.betas":[0.9,0.999],'
        '"opt.name":"adam","small":2.5e-07,"text":"\\u00e9\\"\\n"}}',
        "842159698357",
    ),
    (
        {
            "command": ["train", "--lr={lr}"],
            "base": {"lr": 3},
            "seeds": {"field": "s", "values": [7]},
        },
        '{"command":["train","--lr={lr}"],"seed":7,"values":{"lr":3}}',
        "d5e85ac7c48a",
    ),
]


def run_ids(mapping, *overrides):
    return [run.id for run in plan({"name": "v", **mapping}, overrides, validate=False).runs]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Create the recipe file of the third vector and enter its folder."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.py").write_text("")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("mapping", "text", "expected"), VECTORS, ids=range(len(VECTORS)))
def test_published_ids_do_not_change(mapping, text, expected):
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == expected
    assert run_ids(mapping) == [expected]


@pytest.mark.parametrize(
    "other",
    [
        {"base": {"b": 1.0, "a": 0.0001}},
        {"base": {"a": 1e-4}, "grid": {"b": [1]}},
        {"include": [{"b": 1, "a": 1e-4}]},
        {"zip": [{"a": [1e-4], "b": [1]}]},
        {"base": {"a": 1e-4, "b": 1}, "service": "local"},
        {"base": {"a": 1e-4, "b": 1}, "launch": {"retries": 3, "backend": "local"}, "name": "w"},
    ],
)
def test_an_id_depends_only_on_values(other):
    command = {"command": ["echo"]}
    assert run_ids({**command, **other}) == run_ids({**command, "base": {"a": 1e-4, "b": 1}})


def test_nested_and_dotted_keys_give_one_id():
    command = {"command": ["echo"]}
    nested = run_ids({**command, "base": {"o": {"p": {"q": 1}, "r": 2}}})
    assert nested == run_ids({**command, "base": {"o.p.q": 1, "o.r": 2}})
    assert nested == run_ids({**command, "base": {"o": {"p.q": 1, "r": 2}}})
    assert nested == run_ids({**command, "grid": {"o": [{"p": {"q": 1}, "r": 2}]}})


def test_a_seed_gives_one_id_wherever_it_is_given():
    command = {"command": ["echo"]}
    by_seeds = run_ids({**command, "seeds": [3, 4]})
    assert run_ids({**command, "grid": {"seed": [3, 4]}}) == by_seeds
    assert run_ids({**command, "base": {"seed": 3}}) == by_seeds[:1]
    assert run_ids({**command, "seeds": {"field": "other", "values": [3, 4]}}) == by_seeds
    assert run_ids(command) != by_seeds[:1]


@pytest.mark.parametrize(
    "values",
    [[1, True], [0, False], [1, "1"], [None, "null"], [0.1, 0.1 + 1e-17 * 8], ["a", "A"],
     [[1, 2], "[1,2]"], [[], {}], [[1], 1], [2**53, 2**53 + 1], [1e16, 10**16 + 1], ["", None]],
)  # fmt: skip
def test_distinct_values_have_distinct_ids(values):
    if values[0] == values[1] and type(values[0]) is type(values[1]):
        pytest.skip("the same float")
    assert len(set(run_ids({"command": ["echo"], "grid": {"a": values}}))) == 2


def test_more_values_keep_all_ids():
    before = {"command": ["echo"], "grid": {"a": [1, 2]}, "seeds": 2}
    after = {"command": ["echo"], "grid": {"a": [0, 1, 2]}, "include": [{"b": 1}], "seeds": 3}
    assert set(run_ids(before)) < set(run_ids(after))


data = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


def meaning(value):
    """Return a key that is the same for equal values: `1` equals `1.0`, but not `True`."""
    if isinstance(value, list):
        return ("list", *map(meaning, value))
    if isinstance(value, dict):
        return ("dict", *sorted((key, meaning(item)) for key, item in value.items()))
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return (type(value).__name__, value)
    return ("number", value)


@given(data, data)
def test_canonical_texts_are_equal_for_equal_values_only(value, other):
    assert (canonical(value) == canonical(other)) == (meaning(value) == meaning(other))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_equal_numbers_have_one_canonical_text(value):
    assert canonical(value) == canonical(float(repr(value)))
    if value.is_integer():
        assert canonical(value) == canonical(int(value))
