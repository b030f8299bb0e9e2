"""The rest of the grid language: random, when, references; exact messages for mistakes."""

import hashlib
import json
import math

import pytest

from sweeper.errors import GridError
from sweeper.grid import parse_grid
from sweeper.planner.plan import plan


def make(*overrides, **grid):
    return plan({"name": "g", "command": ["echo"], **grid}, overrides)


def configs(*overrides, **grid):
    return [run.config for run in make(*overrides, **grid).runs]


def cells(*overrides, **grid):
    return [run.cell for run in make(*overrides, **grid).runs]


def problems(*overrides, **grid):
    with pytest.raises(GridError) as caught:
        make(*overrides, **grid)
    return list(caught.value.problems)


def warnings(*overrides, **grid):
    return [w for w in make(*overrides, **grid).warnings if ": the command " not in w]


MISTAKES_AFTER_RECIPE = {
    "random: 3": "2:9: random is an integer; it takes a mapping",
    "random: {axes: {a: {choice: [1, 2]}}}":
        "2:9: random needs `samples`, the number of cells to draw",
    "random: {samples: 2}": "2:9: random needs `axes`",
    "random: {samples: 2, axes: {}}": "2:28: random.axes is empty",
    "random: {samples: 0, axes: {a: {choice: [1]}}}": "2:19: random.samples must be 1 to 20000, not"
        " 0",
    "random: {sample: 1, samples: 1, axes: {a: {choice: [1]}}}": "2:10: unknown key 'sample' in "
        "random; did you mean 'samples'?",
    "random: {samples: 1, seed: x, axes: {a: {choice: [1]}}}": "2:28: random.seed is a string; it "
        "takes an integer",
    "random: {samples: 1, axes: {a: [1, 2]}}": "2:32: axis 'a' is a list; it takes one of "
        "uniform, log_uniform, integers, log_integers, choice, as in {uniform: [0, 1]}",
    "random: {samples: 1, axes: {a: {unifrom: [1, 2]}}}": "2:33: axis 'a': 'unifrom' is not one "
        "of uniform, log_uniform, integers, log_integers, choice; did you mean 'uniform'?",
    "random: {samples: 1, axes: {a: {uniform: [1]}}}": "2:42: axis 'a': uniform takes two "
        "numbers, the lower first",
    "random: {samples: 1, axes: {a: {uniform: [2, 1]}}}": "2:42: axis 'a': uniform takes the "
        "lower number first, not [2, 1]",
    "random: {samples: 1, axes: {a: {log_uniform: [0, 1]}}}": "2:46: axis 'a': log_uniform takes "
        "numbers above 0, not 0",
    "random: {samples: 1, axes: {a: {integers: [0, 1.5]}}}": "2:43: axis 'a': integers takes two "
        "integers, the lower first",
    "random: {samples: 1, axes: {a: {uniform: [0, .inf]}}}": "2:42: axis 'a': uniform takes "
        "numbers of at most 1e+15",
    ("random: {samples: 19999, axes: {a: {uniform: [0, 1]}, b: {uniform: [0, 1]}, c: {uniform: "
     "[0, 1]}}}"):
        "2:9: random: more than 50000 values (samples times axes)",
    "grid: {a: [1, 2]}\nrandom: {samples: 1, axes: {a: {uniform: [0, 1]}}}":
        "3:32: axis 'a' is given twice",
    "when: {if: {a: 1}}":
        "2:7: when is a mapping; it takes a list of mappings, each with the key `if`",
    "when: [{grid: {a: [1]}}]": "2:8: when needs `if: {KEY: VALUE}`, which selects cells",
    "when: [{if: {a: 1}}]": "2:8: when gives nothing: add grid, zip, random or base",
    "when: [{if: {a: 1}, gird: {b: [1]}}]": "2:21: unknown key 'gird' in when; did you mean "
        "'grid'?",
    "when: [{if: {a: []}, base: {b: 1}}]": "2:17: if: 'a' has no value",
    "when: [{if: {a: '${b}'}, base: {b: 1}}]": "2:17: if: 'a' needs a value, not a reference",
    "grid: {a: [1], b: [2]}\nwhen: [{if: {a: 1}, grid: {b: [1]}}]": "3:32: axis 'b' is given twice",
    "grid: {a: [1], b: [2]}\nwhen: [{if: {a: 1}, base: {b: 1}}]": "3:31: when.base: 'b' is an "
        "axis already",
    "extends: [o.yaml]": "2:10: extends is a list; it takes the path of another grid",
    "extends: nowhere.yaml": "2:10: extends: nowhere.yaml: No such file or directory",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [(f"recipe: r\n{t}", m) for t, m in MISTAKES_AFTER_RECIPE.items()],
    ids=repr,
)
def test_a_mistake_is_one_line_that_says_where(text, message):
    with pytest.raises(GridError) as caught:
        parse_grid(text, "g.yaml")
    assert list(caught.value.problems) == [f"g.yaml:{message}"]


def drawn(seed, key, number):
    text = json.dumps([seed, key, number], separators=(",", ":"))
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def random(samples=4, seed=7, **axes):
    return {"samples": samples, "seed": seed, "axes": axes}


def test_what_is_drawn_is_the_published_vector():
    axes = {
        "temperature": {"uniform": [0.5, 1.0]},
        "learning_rate": {"log_uniform": [1e-5, 1e-2]},
        "layers": {"integers": [1, 8]},
        "batch_size": {"log_integers": [8, 512]},
        "warmup": {"choice": [0, 10, 100]},
    }
    assert configs(random=random(3, 7, **axes)) == [
        dict(zip(axes, values, strict=True))
        for values in (
            (0.9323, 6.693e-4, 8, 12, 0),
            (0.8738, 1.858e-5, 1, 20, 100),
            (0.8084, 1.078e-5, 2, 160, 100),
        )
    ]


def test_each_way_of_drawing_is_the_formula_in_the_documentation():
    for number in range(50):
        planned = configs(
            random=random(
                number + 1, 3, u={"uniform": [-2, 6]}, g={"log_uniform": [0.01, 100]},
                i={"integers": [-3, 3]}, c={"choice": ["a", "b", "c"]},
                j={"log_integers": [1, 1000]},
            )
        )[-1]  # fmt: skip
        u = {key: drawn(3, key, number) / 2**256 for key in planned}
        assert planned["u"] == pytest.approx(-2 + 8 * u["u"], abs=0.0005)
        assert planned["g"] == pytest.approx(0.01 * 10_000 ** u["g"], rel=0.0005)
        assert planned["i"] == -3 + math.floor(7 * u["i"])
        assert planned["c"] == "abc"[math.floor(3 * u["c"])]
        exact = math.exp(math.log(0.5) + u["j"] * math.log(1000.5 / 0.5))
        assert abs(planned["j"] - exact) <= 0.5 + 1e-6


def test_more_samples_or_another_axis_change_nothing_that_was_drawn():
    few = configs(random=random(3, a={"uniform": [0, 1]}, b={"choice": [1, 2, 3]}))
    more = configs(
        random=random(9, x={"uniform": [0, 1]}, b={"choice": [1, 2, 3]}, a={"uniform": [0, 1]})
    )
    assert [{"a": c["a"], "b": c["b"]} for c in more[:3]] == few
    assert few != configs(random=random(3, 8, a={"uniform": [0, 1]}, b={"choice": [1, 2, 3]}))


@pytest.mark.parametrize(
    ("low", "high"), [(0.999, 0.9999), (1000, 1001), (0, 1e-12), (-1e15, 1e15), (1, 1 + 2**-52)]
)
def test_what_is_drawn_stays_between_its_ends_and_readable(low, high):
    for kind in ("uniform", "log_uniform"):
        if kind == "uniform" or low > 0:
            drawn = configs(random=random(40, a={kind: [low, high]}))
            assert all(low <= c["a"] <= high for c in drawn)
            assert len(drawn) > 15 or high - low < 1e-9
            assert all(len(cell) < 25 for cell in cells(random=random(40, a={kind: [low, high]})))


def test_samples_multiply_with_the_other_axes():
    drawn = configs(
        grid={"g": [1, 2]},
        zip=[{"z": [3, 4], "y": [5, 6]}],
        random=random(2, r={"uniform": [0, 1]}),
    )
    r = [c["r"] for c in drawn[:2]]
    assert drawn == [
        {"g": g, "z": z, "y": z + 2, "r": value} for g in (1, 2) for z in (3, 4) for value in r
    ]
    assert make(grid={"g": [1]}, random=random(2, r={"uniform": [0, 1]})).axes["r"] == r


def test_samples_that_repeat_count_once():
    grid = {"random": random(6, a={"choice": [1, 2]})}
    assert sorted(c["a"] for c in configs(**grid)) == [1, 2]
    assert warnings(**grid) == ["random: 4 of the 6 samples repeat others and count once"]
    assert warnings("random.samples=2", **grid) in ([], ["random: 1 of the 2 samples repeat another"
                                                        " and count once"])  # fmt: skip


def test_the_command_line_on_what_is_drawn():
    grid = {"random": random(3, a={"uniform": [0, 1]}, b={"integers": [1, 9]})}
    before = configs(**grid)
    assert configs("random.samples=5", **grid)[:3] == before
    assert configs("random.seed=8", **grid) != before
    assert configs("~a", **grid) == [{"b": c["b"]} for c in before]
    assert configs("a=7", **grid) == [{"b": c["b"], "a": 7} for c in before]
    assert configs("a=[1,2]", **grid) == [{"b": c["b"], "a": a} for a in (1, 2) for c in before]
    assert configs("~random", **grid) == configs("~a", "~b", **grid) == [{}]
    message = "write random.samples=<count>, random.seed=<integer>, or ~random"
    assert problems("random.sample=5", **grid) == [f"override 'random.sample=5': {message}"]
    assert problems("random.samples=0", **grid) == [
        "override 'random.samples=0': random.samples must be 1 to 20000"
    ]
    assert problems("random.seed=x", **grid) == [
        "override 'random.seed=x': random.seed takes an integer"
    ]
    assert problems("random.seed=1") == ["override 'random.seed=1': the grid has no section random"]
    assert configs("random.x=1", base={"random": {"x": 0}}) == [{"random.x": 1}]


WHEN = {
    "base": {"momentum": 0.5},
    "grid": {"optimizer": ["adam", "sgd", "lion"]},
    "when": [
        {"if": {"optimizer": ["adam", "lion"]}, "grid": {"beta2": [0.9, 0.99]}},
        {"if": {"optimizer": "sgd"}, "base": {"momentum": 0.9}},
        {"if": {"beta2": 0.9, "optimizer": "lion"}, "zip": [{"x": [1, 2], "y": [3, 4]}]},
    ],
}


def test_axes_under_a_condition():
    planned = make(**WHEN)
    assert [(run.cell, run.config) for run in planned.runs] == [
        ("opt=adam,beta2=0.9", {"momentum": 0.5, "optimizer": "adam", "beta2": 0.9}),
        ("opt=adam,beta2=0.99", {"momentum": 0.5, "optimizer": "adam", "beta2": 0.99}),
        ("opt=sgd", {"momentum": 0.9, "optimizer": "sgd"}),
        (
            "opt=lion,beta2=0.9,x=1,y=3",
            {"momentum": 0.5, "optimizer": "lion", "beta2": 0.9, "x": 1, "y": 3},
        ),
        (
            "opt=lion,beta2=0.9,x=2,y=4",
            {"momentum": 0.5, "optimizer": "lion", "beta2": 0.9, "x": 2, "y": 4},
        ),
        ("opt=lion,beta2=0.99", {"momentum": 0.5, "optimizer": "lion", "beta2": 0.99}),
    ]
    assert planned.axes == {
        "optimizer": ["adam", "sgd", "lion"], "beta2": [0.9, 0.99], "x": [1, 2], "y": [3, 4],
    }  # fmt: skip


def test_random_axes_under_a_condition_and_conditions_without_axes():
    named = cells(
        base={"o": "a"}, when=[{"if": {"o": "a"}, "random": random(2, r={"uniform": [0, 1]})}]
    )
    assert len(named) == 2
    assert configs(base={"o": "a"}, when=[{"if": {"o": "a"}, "base": {"p": 1}}]) == [
        {"o": "a", "p": 1}
    ]
    assert configs(base={"o": {"n": 1}}, when=[{"if": {"o": {"n": 1.0}}, "base": {"o.m": 2}}]) == [
        {"o.n": 1, "o.m": 2}
    ]


def test_a_condition_sees_the_command_line():
    assert cells("optimizer=sgd", **WHEN) == ["base"]
    assert cells("optimizer=[sgd,lion]", "~x", "~y", **WHEN) == [
        *("opt=sgd", "opt=lion,beta2=0.9", "opt=lion,beta2=0.99")
    ]
    # A key that only `when` gives keeps its condition.
    assert [c.get("beta2") for c in configs("beta2=0.5", **WHEN)] == [0.5, None, 0.5]
    assert [c.get("beta2") for c in configs("beta2=[1,2]", **WHEN)] == [1, 2, None, 1, 2]
    assert {c["momentum"] for c in configs("momentum=0.1", **WHEN)} == {0.1}
    assert list(make("~optimizer", **WHEN).axes) == []
    assert warnings("~optimizer", **WHEN)[0] == (
        "when[0].if.optimizer: if names optimizer, which the command line dropped"
    )


def test_conditions_that_cannot_hold():
    base = {"o": "adam"}
    assert warnings(base=base, when=[{"if": {"o": "adm"}, "base": {"x": 1}}]) == [
        "when[0].if.o: when: no cell has o: adm; did you mean 'adam'?"
    ]
    assert warnings(base=base, when=[{"if": {"o": 3}, "base": {"x": 1}}]) == [
        "when[0]: when: its condition never holds"
    ]
    assert problems(
        base=base, when=[{"if": {"oo": 1}, "base": {"x": 1}}, {"if": {"y": 1}, "base": {"z": 1}},
                         {"if": {"o": 1}, "base": {"y": 1}}],
    ) == [
        "when[0].if.oo: if: the grid gives no 'oo'; did you mean 'o'?",
        "when[1].if.y: if: 'y' is given only by a later entry",
    ]  # fmt: skip
    assert problems(seeds=2, when=[{"if": {"seed": 1}, "base": {"z": 1}}]) == [
        "when[0].if.seed: if: seed is the seed, which differs within a cell"
    ]


def test_two_entries_may_give_one_key_if_no_cell_has_both():
    either = [
        {"if": {"o": 1}, "grid": {"b": [1, 2]}},
        {"if": {"o": 2}, "base": {"b": 3}},
    ]
    assert cells(grid={"o": [1, 2]}, when=either) == ["o=1,b=1", "o=1,b=2", "o=2,b=3"]
    either[1]["if"] = {"o": [1, 2]}
    assert problems(grid={"o": [1, 2]}, when=either) == [
        "when[1]: when: 'b' is given by two entries that apply to the same cells"
    ]
    nested = [{"if": {"o": 1}, "base": {"b": None}}, {"if": {"o": 1}, "base": {"b.c": 1}}]
    assert problems(base={"o": 1}, when=nested) == [
        "when[1]: when: 'b.c' is given by two entries that apply to the same cells"
    ]


def test_exclude_comes_after_when_and_include_without_it():
    assert configs(
        grid={"o": [1, 2]},
        when=[{"if": {"o": 1}, "grid": {"b": [1, 2]}}],
        exclude=[{"b": 2}],
        include=[{"o": 1}],
    ) == [{"o": 1, "b": 1}, {"o": 2}, {"o": 1}]


def test_a_product_under_conditions_that_is_too_large_is_refused_before_it_is_made():
    many = {f"a{n}": list(range(100)) for n in range(20)}
    assert problems(base={"o": 1}, when=[{"if": {"o": 1}, "grid": many}]) == [
        "when: more than 100000 cells; a sweep has at most 100000 runs"
    ]
    both = [{"if": {"o": 1}, "grid": many}, {"if": {"o": 1}, "base": {"a0": 1}}]
    assert "when: more than 100000 cells; a sweep has at most 100000 runs" in (
        problems(base={"o": 1}, when=both, exclude=[{"o": 1}])
    )


def test_a_reference_is_the_other_value_or_its_text():
    assert configs(
        base={
            "a": 1,
            "copy": "${a}",
            "text": "lr${lr}-${flag}-${list}-${copy}",
            "inside": ["${lr}", {"k": "${a}"}],
            "escaped": "$${a} $x {y}",
            "flag": True,
            "list": [1, 2.0],
            "opt": {"lr": "${lr}", "name": "adam"},
            "opts": "${opt}",
        },
        grid={"lr": [1e-4]},
    ) == [
        {
            "a": 1, "copy": 1, "text": "lr0.0001-true-[1,2]-1", "inside": [0.0001, {"k": 1}],
            "escaped": "${a} $x {y}", "flag": True, "list": [1, 2.0], "opt.lr": 0.0001,
            "opt.name": "adam", "opts.lr": 0.0001, "opts.name": "adam", "lr": 0.0001,
        }
    ]  # fmt: skip


def test_references_are_resolved_after_the_command_line_and_before_exclude_and_when():
    grid = {"base": {"a": 1, "b": "${a}"}, "grid": {"x": [1, 2]}}
    assert [c["b"] for c in configs("a=5", **grid)] == [5, 5]
    assert [c["a"] for c in configs("a=${x}", **grid)] == [1, 2]
    assert [c["b"] for c in configs("a=[7,8]", "~x", **grid)] == [7, 8]
    grid["base"]["a"] = "${x}"
    assert configs(**grid, exclude=[{"b": 2}]) == [{"a": 1, "b": 1, "x": 1}]
    resolved = configs(**grid, when=[{"if": {"b": 2}, "base": {"c": "${b}${b}"}}])
    assert [c.get("c") for c in resolved] == [None, "22"]


def test_only_axes_are_in_a_name_and_ids_are_those_of_the_values():
    planned = make(base={"p": 1, "b": "${x}"}, grid={"x": [1, 2]})
    plainly = [make(base={"p": 1, "b": n, "x": n}).runs[0].id for n in (1, 2)]
    assert [run.cell for run in planned.runs] == ["x=1", "x=2"]
    assert [run.id for run in planned.runs] == plainly
    planned = make(
        base={"p": 1, "q": "w"}, grid={"x": ["${p}", "${q}", 3]}, include=[{"x": "${p}5"}]
    )
    assert [run.cell for run in planned.runs] == ["x=1", "x=w", "x=3", "x=15~47cea6"]
    assert planned.axes == {"x": [1, "w", 3]}
    assert problems(base={"p": 1}, grid={"x": ["${p}", 1]}) == [
        "grid.x[1]: cells 'base' and 'base' have the same configuration"
    ]


def test_a_reference_to_the_seed():
    planned = make(
        base={"shuffle": "${seed}", "s": "n${shuffle}"}, grid={"a": [1, 2]}, seeds=[3, 4]
    )
    assert [(run.cell, run.config["shuffle"], run.config["s"]) for run in planned.runs] == [
        ("a=1", 3, "n3"), ("a=1", 4, "n4"), ("a=2", 3, "n3"), ("a=2", 4, "n4"),
    ]  # fmt: skip
    assert planned.runs[0].id == make(base={"a": 1, "seed": 3, "shuffle": 3, "s": "n3"}).runs[0].id
    zipped = make(base={"x": "${seed}"}, zip=[{"a": [1, 1, 2], "seed": [3, 4, 3]}])
    assert [(run.cell, run.seed, run.config["x"]) for run in zipped.runs] == [
        ("a=1", 3, 3),
        ("a=1", 4, 4),
        ("a=2", 3, 3),
    ]
    assert configs(base={"seed": "${n}", "n": 5}) == [{"seed": 5, "n": 5}]
    assert configs(base={"t": "$${n}", "x": "${t}${seed}"}, seeds=1)[0]["x"] == "${n}0"


def test_references_that_stand_for_nothing():
    assert problems(
        base={"a": "${b}", "b": "${c}", "c": "${a}"}, grid={"x": ["${yy}"], "y": [1]}
    ) == [
        "base.a: a: references form a cycle: a -> b -> c -> a",
        "base.b: b: references form a cycle: a -> b -> c -> a",
        "base.c: c: references form a cycle: a -> b -> c -> a",
        "grid.x[0]: x: ${yy}: the grid gives no 'yy' here; did you mean 'y'?",
    ]
    assert problems(base={"a": "${seed}"}) == ["base.a: a: ${seed}: the grid gives no 'seed' here"]
    assert problems(base={"a": "${a.b}"}) == ["base.a: a: ${a.b}: the grid gives no 'a.b' here"]
    assert problems(base={"o": "${z}"}, when=[{"if": {"o": 1}, "base": {"x": 1}}]) == [
        "when[0].if.o: if: o: ${z}: the grid gives no 'z' here",
        "base.o: o: ${z}: the grid gives no 'z' here",
    ]


def test_references_that_explode_are_refused():
    doubling = {"a0": "x" * 10} | {f"a{n}": f"${{a{n - 1}}}" * 2 for n in range(1, 30)}
    assert problems(base=doubling)[0] == (
        "base.a14: a14: with its references resolved, the value is longer than 100000 characters"
    )
    lists = {"a0": [1]} | {f"a{n}": [f"${{a{n - 1}}}"] * 2 for n in range(1, 30)}
    assert problems(base=lists)[0].endswith(
        "with its references resolved, the value is longer than 100000 characters, "
        "or nested deeper than 32 levels"
    )
    chain = {"a0": 1} | {f"a{n}": f"${{a{n - 1}}}" for n in range(1, 200)}
    # In this order, each reference is already resolved.
    assert set(configs(base=chain)[0].values()) == {1}
    assert problems(base=dict(reversed(chain.items())))[0] == (
        "base.a199: a199: a chain of more than 32 references"
    )
