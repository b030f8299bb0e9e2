"""The grids that show each construct of the language: their exact expansion."""

from pathlib import Path

import pytest

from sweeper.planner.plan import plan

ROOT = Path(__file__).parents[2]


def cell(**values):
    return {key.replace("__", "."): value for key, value in values.items()}


DRAWN = [
    (0.1648, 0.404, 15, 5),
    (0.01511, 0.1068, 19, 0),
    (0.01052, 0.0017, 19, 5),
    (0.02137, 0.0605, 17, 0),
]
PRODUCT = {"steps": 10, "schedule.kind": "linear"}
EXPANSIONS = {
    "product": [
        ("lr=0.1,warmup=0", PRODUCT | cell(learning_rate=0.1, schedule__warmup=0)),
        ("lr=0.3,warmup=0", PRODUCT | cell(learning_rate=0.3, schedule__warmup=0)),
        ("lr=0.3,warmup=5", PRODUCT | cell(learning_rate=0.3, schedule__warmup=5)),
        ("lr=1.0,bowl=narrow", PRODUCT | cell(learning_rate=1.0, bowl="narrow")),
    ],
    "zip": [
        (f"opt={opt},bowl={bowl},lr={lr}", cell(optimizer=opt, bowl=bowl, learning_rate=lr))
        for opt in ("sgd", "adam")
        for bowl, lr in (("round", 0.5), ("narrow", 0.1), ("narrow", 0.05))
    ],
    "random": [
        (f"opt={opt},lr={lr},noise={noise},steps={steps},warmup={warmup}",
         cell(optimizer=opt, learning_rate=lr, noise=noise, steps=steps, schedule__warmup=warmup))
        for opt in ("sgd", "adam")
        for lr, noise, steps, warmup in DRAWN
    ],
    "when": [
        *((f"opt=sgd,momentum={m}", cell(optimizer="sgd", momentum=m)) for m in (0.0, 0.5, 0.9)),
        *((f"opt=adam,amsgrad={str(ams).lower()},beta2={beta2},note={note}",
           cell(optimizer="adam", learning_rate=0.3, amsgrad=ams, beta2=beta2, note=note))
          for ams in (False, True)
          for beta2, note in ((0.9, "short"), (0.999, "long"))),
    ],
    "references": [
        (f"lr={lr}",
         cell(steps=12, schedule__warmup=12, momentum=momentum, start=[lr, 2.0], learning_rate=lr,
              note=f"rate {lr} in ${{brackets}}"))
        for lr, momentum in ((0.1, 0.4), (0.3, 0.2))
    ],
    "ranges": [
        (f"lr={lr},momentum={momentum},steps={steps}",
         cell(learning_rate=lr, momentum=momentum, steps=steps))
        for lr in (0.01, 0.1, 1)
        for momentum in (0, 0.9)
        for steps in (10, 20)
    ],
    "extends": [
        (f"lr={lr},momentum={momentum}",
         cell(steps=10, schedule__kind="constant", learning_rate=lr, momentum=momentum))
        for lr in (0.2, 0.4)
        for momentum in (0.0, 0.9)
    ],
}  # fmt: skip  # fmt: skip
SEEDS = {"product": [0, 1], "zip": [11], "references": [5, 6], "extends": [0]}


@pytest.mark.parametrize("name", EXPANSIONS)
def test_a_grid_expands_to_exactly_this(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    planned = plan(f"grids/language/{name}.yaml", validate=False)
    expected = []
    for label, config in EXPANSIONS[name]:
        for seed in SEEDS.get(name, [None]):
            seeds = {} if seed is None else {"seed": seed}
            seeds |= {"noise_seed": seed} if name == "references" else {}
            expected.append((label, seed, config | seeds))
    assert [(run.cell, run.seed, run.config) for run in planned.runs] == expected
    assert [w for w in planned.warnings if "not validated" not in w] == []


def test_each_grid_of_the_language_is_here():
    assert {path.stem for path in (ROOT / "grids" / "language").glob("*.yaml")} == set(EXPANSIONS)
