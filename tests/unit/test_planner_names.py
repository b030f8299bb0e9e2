"""Names of runs: short, readable, safe, and distinct for any values."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sweeper.grid.naming import key_labels, value_labels
from sweeper.planner.plan import plan
from sweeper.sweep.names import MAX_NAME

SAFE = re.compile(r"[A-Za-z0-9_+~][A-Za-z0-9._+~=,-]*\Z")


def names(**grid):
    return [run.name for run in plan({"name": "n", "command": ["echo"], **grid}).runs]


def cells(**grid):
    return [run.cell for run in plan({"name": "n", "command": ["echo"], **grid}).runs]


def test_a_name_contains_only_what_varies():
    run_names = names(
        base={"model_name": "x"},
        grid={"learning_rate": [1e-4, 3e-4], "lora_rank": [8], "opt.name": ["adam", "sgd"]},
        seeds=2,
    )
    assert run_names == [
        f"lr={lr},name={name},seed={seed}"
        for lr in ("1e-4", "3e-4")
        for name in ("adam", "sgd")
        for seed in (0, 1)
    ]


def test_names_without_axes():
    assert (names(), cells()) == (["base"], ["base"])
    assert (names(seeds=1), cells(seeds=1)) == (["seed=0"], ["base"])
    assert names(seeds={"field": "shuffle", "values": [7]}) == ["seed=7"]


def test_an_included_cell_is_named_by_all_its_values():
    run_names = names(
        base={"a": 1, "b": 2}, grid={"a": [1, 3]}, include=[{"b": 5}, {"c": 0}, {"a": 3, "b": 4}]
    )
    assert run_names == ["a=1", "a=3", "a=1,b=5", "a=1,b=2,c=0", "a=3,b=4"]


def test_a_cell_has_one_name_for_all_seeds():
    grid = {"grid": {"lr": [1, 2]}, "include": [{"lr": 1, "warmup": 10}], "seeds": 3}
    assert cells(**grid) == [c for c in ("lr=1", "lr=2", "lr=1,warmup=10") for _ in range(3)]
    grid["include"] = [{"lr": 3, "warmup": 10}, {"lr": 1, "warmup": 10}]
    assert list(dict.fromkeys(cells(**grid)))[2:] == ["lr=3,warmup=10", "lr=1,warmup=10"]
    # Without axes, names leave out what all included cells share.
    assert cells(include=[{"a": 1, "b": 3}, {"a": 2, "b": 3}]) == ["a=1", "a=2"]


def test_a_seed_in_zip_or_include_is_not_part_of_the_cell():
    def shown(**grid):
        planned = plan({"name": "n", "command": ["echo"], **grid})
        return [(run.cell, run.seed, run.name) for run in planned.runs], list(planned.axes)

    assert shown(zip=[{"lr": [1, 1, 2], "seed": [0, 1, 0]}]) == (
        [("lr=1", 0, "lr=1,seed=0"), ("lr=1", 1, "lr=1,seed=1"), ("lr=2", 0, "lr=2,seed=0")],
        ["lr"],
    )
    included = {"base": {"seed": 3}, "include": [{"lr": 1, "seed": 4}]}
    assert shown(grid={"lr": [1, 2]}, **included)[0] == [
        ("lr=1", 3, "lr=1,seed=3"),
        ("lr=2", 3, "lr=2,seed=3"),
        ("lr=1", 4, "lr=1,seed=4"),
    ]
    included = {"base": {"w": 0}, "include": [{"lr": 2, "seed": 5}, {"lr": 2, "w": 1}]}
    assert shown(zip=[{"lr": [1, 2], "seed": [3, 4]}], **included)[0] == [
        ("lr=1", 3, "lr=1,seed=3"),
        ("lr=2", 4, "lr=2,seed=4"),
        ("lr=2", 5, "lr=2,seed=5"),
        ("lr=2,w=1", None, "lr=2,w=1"),
    ]
    assert shown(include=[{"lr": 1, "seed": 4}, {"lr": 2}])[0] == [
        ("lr=1", 4, "lr=1,seed=4"),
        ("lr=2", None, "lr=2"),
    ]
    assert shown(base={"seed": 3})[0] == [("base", 3, "base")]
    assert shown(include=[{"seed": "a"}, {"seed": None}, {"seed": 1}])[0] == [
        ("seed=a", None, "seed=a"),
        ("seed=none", None, "seed=none"),
        ("seed=1", 1, "seed=1"),
    ]


def test_replicates_without_a_seed_are_separate_runs():
    grid = {"name": "n", "command": ["echo", "{lr}"], "grid": {"lr": [1, 2]}}
    planned = plan(grid | {"seeds": {"field": "none", "values": 2}})
    assert [(run.name, run.cell, run.seed, run.config) for run in planned.runs] == [
        ("lr=1,replicate=0", "lr=1", 0, {"lr": 1}),
        ("lr=1,replicate=1", "lr=1", 1, {"lr": 1}),
        ("lr=2,replicate=0", "lr=2", 0, {"lr": 2}),
        ("lr=2,replicate=1", "lr=2", 1, {"lr": 2}),
    ]
    assert len({run.id for run in planned.runs}) == 4
    assert planned.unseeded
    seeded = plan({"name": "n", "command": ["echo", "{seed}"], "seeds": 2})
    assert not seeded.unseeded


def test_an_axis_called_seed_beside_replicates():
    # Only a recipe may have both: in a command, {seed} is the seed of the replicate.
    def shown(field, **axes):
        grid = {"name": "n", "recipe": "a.b", "grid": axes, "seeds": {"field": field, "values": 1}}
        return [run.name for run in plan(grid, validate=False).runs]

    assert shown("other", seed=[4, 5]) == ["seed=4,other=0", "seed=5,other=0"]
    assert shown("o.x", **{"seed": [4, 5], "a.x": [1, 2]})[0] == "seed=4,x=1,o.x=0"
    assert shown("x", **{"seed": [4, 5], "a.x": [1, 2]})[0] == "seed=4,a.x=1,x=0"
    assert shown("other", lr=[1, 2]) == ["lr=1,seed=0", "lr=2,seed=0"]


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (1e-4, "1e-4"),
        (1e-3, "1e-3"),
        (0.5, "0.5"),
        (0.01, "0.01"),
        (0.00015, "1.5e-4"),
        (0.0015, "0.0015"),
        (-2e-5, "-2e-5"),
        (100.0, "100"),
        (12345.0, "12345"),
        (1e5, "1e5"),
        (1e300, "1e300"),
        (0.1 + 0.2, "0.30000000000000004"),
        (float("inf"), "inf"),
        (8, "8"),
        (True, "true"),
        (None, "none"),
        ("adam", "adam"),
        ("v1.5_x-y", "v1.5_x-y"),
        ("1e-4", "1e-4~2c053e"),
        ("true", "true~18d10c"),
        ("a/b", "b"),
        ("a/1e-4", "a_1e-4~09c54d"),
        ("tinker://run/weights/final", "tinker_run_weights_final~360720"),
        ("../..", "~e5ab1c"),
        ("Qwen/Qwen3-8B", "Qwen3-8B"),
        ("Qwen/Qwen3-4B-Instruct-2507", "Qwen3-4B-Instruct-2507"),
        ([1, 2], "1_2~49a647"),
    ],
)
def test_labels_of_values(value, label):
    (shown,) = value_labels([value]).values()
    assert shown == label


def test_a_path_is_labelled_by_its_end_if_that_is_unique():
    values = ["Qwen/Qwen3-8B", "mine/Qwen3-8B", "Qwen/Qwen3-4B", "b", "a/b"]
    labels = list(value_labels(values).values())
    assert labels[2:] == ["Qwen3-4B", "b", "a_b~f5effa"]
    assert labels[0].startswith("Qwen_Qwen3-8B~") and labels[1].startswith("mine_Qwen3-8B~")


def test_values_that_differ_in_case_get_distinct_labels():
    labels = list(value_labels(["adam", "Adam", "ADAM"]).values())
    assert labels[0] == "adam"
    assert len({label.casefold() for label in labels}) == 3


@pytest.mark.parametrize(
    ("keys", "short"),
    [
        (["learning_rate", "opt.weight_decay"], ["lr", "wd"]),
        (["learning_rate", "lr"], ["learning_rate", "lr"]),
        (["a.x", "b.x"], ["a.x", "b.x"]),
        (["lora_rank", "rank", "x.rank"], ["lora_rank", "rank", "x.rank"]),
        (["data.seed"], ["data.seed"]),
    ],
)
def test_keys_are_shortened_if_unambiguous(keys, short):
    assert list(key_labels(keys).values()) == short


keys = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,50}(\.[A-Za-z0-9_]{1,20}){0,2}", fullmatch=True)
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.text("aA_/.~=,-1e", max_size=5),
    st.lists(st.integers(0, 9) | st.text("a,", max_size=2), max_size=3),
)


@settings(max_examples=50)
@given(st.lists(keys, unique=True, max_size=8))
def test_labels_of_keys_are_distinct_and_safe(names):
    labels = [label.casefold() for label in key_labels(names).values()]
    assert len(set(labels)) == len(names)
    assert all(SAFE.match(label) for label in labels)


@given(st.lists(values, max_size=8))
def test_labels_of_values_are_distinct_and_safe(drawn):
    labels = value_labels(drawn)
    assert len({label.casefold() for label in labels.values()}) == len(labels)
    assert all(re.fullmatch(r"[A-Za-z0-9._+~-]+", label) for label in labels.values())


fields = st.from_regex(r"[a-zA-Z_]{1,30}", fullmatch=True) | st.sampled_from(["a", "b", "o.a"])
few = st.sampled_from([1, 2, "x"]) | values


some_axes = st.dictionaries(
    fields,
    st.lists(few, min_size=1, max_size=3, unique_by=lambda v: repr(v).casefold()),
    max_size=3,
)
conditions = st.fixed_dictionaries(
    {
        "if": st.dictionaries(
            st.sampled_from(["a", "b"]), st.sampled_from([1, 2, "x", [1, 2]]), min_size=1
        ),
        "grid": some_axes,
        "base": st.dictionaries(fields, few, min_size=1, max_size=2),
    }
)
ways = st.sampled_from([{"choice": [1, 2, "x", 1.5]}, {"uniform": [0, 1]}, {"integers": [1, 3]}])
samples = st.fixed_dictionaries(
    {"samples": st.integers(1, 4), "axes": st.dictionaries(fields, ways, min_size=1, max_size=2)}
)


@settings(max_examples=80)
@given(
    some_axes,
    st.dictionaries(fields, few | st.sampled_from(["${a}", "x${b}", "${s_}"]), max_size=2),
    st.lists(st.dictionaries(fields, few, min_size=1, max_size=3), max_size=3),
    st.lists(conditions, max_size=2),
    st.none() | samples,
)
@example({}, {"a": "${a}"}, [], [], None)
@example({}, {"a": "${:}"}, [], [], None)
@example({}, {"a": "${b}"}, [], [], None)
@example({}, {"a": "\0"}, [], [], None)
def test_names_of_any_grid_are_distinct_and_safe(axes, base, include, when, random):
    from sweeper.errors import GridError

    grid = {"name": "n", "command": ["echo"], "grid": axes, "seeds": {"field": "s_", "values": 2}}
    grid |= {"base": base, "include": include, "when": when, "random": random}
    try:
        runs = plan(grid).runs
    except GridError as error:
        allowed = ("twice", "is not a reference", "U+0000", "set by sweeper", "given by seeds",
                   "an axis already", "the same configuration", "overlap", "the grid gives no",
                   "form a cycle", "neither a key nor", "names no key", "apply to the same cells",
                   "by a later entry")  # fmt: skip
        assert all(any(word in line for word in allowed) for line in error.problems)
        return
    assert len({run.name.casefold() for run in runs}) == len(runs)
    assert len({run.id for run in runs}) == len(runs)
    assert all(len(run.name) <= MAX_NAME and SAFE.match(run.name) for run in runs)
    assert len({run.cell.casefold() for run in runs}) == len(runs) // 2
    assert all(
        first.cell == second.cell for first, second in zip(runs[::2], runs[1::2], strict=True)
    )


def test_cells_made_by_conditions_and_by_include_have_distinct_names():
    grid = {
        "grid": {"o": [1, 2]},
        "when": [{"if": {"o": 1}, "base": {"m": 5}}, {"if": {"o": 2}, "grid": {"k": [7]}}],
        "include": [{"o": 1}, {"o": 2}, {"o": 3, "k": 7}],
    }
    assert cells(**grid) == ["o=1", "o=2,k=7", "o=1~b1b959297a", "o=2", "o=3,k=7"]


def test_names_of_long_values_keep_the_limit():
    long = ["x" * 10_000, "x" * 9_999 + "y"]
    run_names = names(grid={f"a_rather_long_name_{n}": long for n in range(6)}, seeds=2)
    assert len(set(run_names)) == 128
    assert max(map(len, run_names)) <= MAX_NAME
