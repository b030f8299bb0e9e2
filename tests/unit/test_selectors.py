"""Which runs a selector means: the same for every verb, with numbers in any spelling."""

from pathlib import Path

import pytest
from support import written

from sweeper.errors import NotFound, UsageError
from sweeper.results.registry import Registry
from sweeper.results.selectors import pick


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    for sweep in ("one", "two"):
        made = written.Written(tmp_path, sweep, {"rate": [3e-2, 3e-1]})
        for rate in (0.03, 0.3):
            for seed in (1, 10):
                made.run({"rate": rate}, seed, [{"step": 0, "test/nll": 2.0}])
        made.save()
    return Registry(str(tmp_path))


FITS = {
    "one": {"rate=0.03,seed=1", "rate=0.03,seed=10", "rate=0.3,seed=1", "rate=0.3,seed=10"},
    "one/rate=3e-2,seed=1": {"rate=0.03,seed=1"},
    "one/rate=3e-2*": {"rate=0.03,seed=1", "rate=0.03,seed=10"},
    "one/rate=3E-02": {"rate=0.03,seed=1", "rate=0.03,seed=10"},
    "one/rate=0.3": {"rate=0.3,seed=1", "rate=0.3,seed=10"},
    "one/seed=1": {"rate=0.03,seed=1", "rate=0.3,seed=1"},
    "one/seed=1.0,rate=.3": {"rate=0.3,seed=1"},
    "one/rate=": {"rate=0.03,seed=1", "rate=0.03,seed=10", "rate=0.3,seed=1", "rate=0.3,seed=10"},
}


@pytest.mark.parametrize("selector", FITS)
def test_a_selector_means_the_same_in_a_root_and_in_a_sweep(selector, registry):
    assert {(run.sweep, run.name) for run in registry.choose([selector])} == {
        ("one", name) for name in FITS[selector]
    }
    runs = registry.sweep("one").runs
    assert {run.name for run in pick(runs, [selector])} == FITS[selector]
    bare = selector.partition("/")[2]
    if bare:
        assert {run.name for run in pick(runs, [bare])} == FITS[selector]
        assert {run.sweep for run in registry.choose([bare])} == {"one", "two"}
    if len(FITS[selector]) == 1:
        assert {registry.run(selector).name} == FITS[selector]
    else:
        with pytest.raises(UsageError, match=f"matches {len(FITS[selector])} runs"):
            registry.run(selector)


def test_a_selector_without_a_match_is_refused(registry):
    for selector in ("one/rate=3e-3", "three", "rate=0.3,seed=2", "one/rate=3e-2,seed=1,x=1"):
        with pytest.raises(NotFound, match="no run"):
            registry.choose([selector])


def test_names_keep_the_spelling_of_numbers_in_the_grid(tmp_path: Path):
    from sweeper.planner.plan import plan

    grid = tmp_path / "g.yaml"
    rates = "[2e-3, 3e-2, 0.10, 1E-4, 5]"
    grid.write_text(
        f"command: [echo, '{{rate}}']\ngrid: {{rate: {rates}}}\ninclude: [{{rate: 7.50}}]"
    )
    names = [run.name for run in plan(str(grid)).runs]
    assert names == ["rate=2e-3", "rate=3e-2", "rate=0.10", "rate=1E-4", "rate=5", "rate=7.50"]
    typed = plan(str(grid), ["rate=[4e-02,0.4]"])
    assert [run.name for run in typed.runs] == ["rate=4e-02", "rate=0.4", "rate=7.50"]
    other = plan(str(grid), ["rate=[0.002,0.03]"])
    assert other.runs[0].id == plan(str(grid)).runs[0].id  # the spelling is not part of the id
