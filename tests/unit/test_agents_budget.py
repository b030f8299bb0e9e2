"""What agents may launch within the budget that a person allowed."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.agent_bench import SECRET, Bench

from sweeper.agents import allowance
from sweeper.agents.allowance import Limits, read_limits
from sweeper.errors import UsageError
from sweeper.results import annotations
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.plan import Budget


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TINKER_API_KEY", SECRET)
    return Bench(tmp_path)


def test_a_token_budget_refuses_commands_whose_usage_is_not_recorded(bench):
    """Unrecorded usage cannot be counted, so an agent's command could exceed the budget."""
    for name in ("tokens", "usd"):
        limits = Limits(runs=9, **{name: 1000.0})
        [answer] = bench.ask(limits, ("launch", {"grid": "mine.yaml", "again": True}))
        assert answer.is_error
        assert f"this server's budget limits {name}, but runs that" in answer.content[0].text
    assert bench.launched == [] and allowance.entries(bench.workspace().store) == []


def test_launches_need_a_budget_and_stay_within_it(bench):
    bench.use_recipe()

    def launch(limits: Limits, *overrides: str) -> Any:
        given = {"grid": "mine.yaml", "overrides": list(overrides), "why": "to see", "again": True}
        return bench.ask(limits, ("launch", given))[0]

    assert "nothing may be launched" in launch(Limits()).content[0].text
    beyond = "6 more runs would exceed what is left of the budget: runs 5"
    assert beyond in launch(Limits(runs=5)).content[0].text
    assert allowance.entries(bench.workspace().store) == [] and not bench.launched
    answer = launch(Limits(runs=8, tokens=1000)).structured_content
    assert (answer["runs_started"], answer["budget_left"]) == (6, {"runs": 2.0, "tokens": 0.0})
    assert annotations.note("mine", root=str(bench.root)).notes[0].text == "to see"
    assert [len(request.runs) for request in bench.launched] == [6]
    assert bench.launched[0].budget == Budget(tokens=1000)
    assert bench.workspace(Limits(runs=8, tokens=1000)).left() == {"runs": 2.0, "tokens": 0.0}
    answer = launch(Limits(runs=8, tokens=1000)).structured_content  # continues, as after a kill
    assert (answer["launched"], bench.launched.pop().budget) == (True, Budget(tokens=1000))
    assert answer["budget_left"] == {"runs": 2.0, "tokens": 0.0}
    refused = launch(Limits(runs=8, tokens=1000), "lr=[5]")  # a new server with the same budget
    assert "exceed what is left" in refused.content[0].text and len(bench.launched) == 1


@pytest.mark.parametrize("restarted", [True, False])
def test_removing_a_sweep_does_not_refund_its_budget(bench, restarted):
    """The first launch stays counted, and launching the sweep again counts as well."""
    bench.use_recipe()
    limits = Limits(runs=14, tokens=1000)
    bounded = {"grid": "mine.yaml", "again": True, "tokens": 400}
    budgets: list[dict[str, float]] = []
    for left in (8, 2):
        (launched,) = bench.ask(limits, ("launch", bounded))
        budgets.append(launched.structured_content["budget_left"])
        assert budgets[-1]["runs"] == left
        if restarted:  # a restart continues the sweep at no further cost
            (again,) = bench.ask(limits, ("launch", {"grid": "mine.yaml", "again": True}))
            assert again.structured_content["budget_left"] == budgets[-1]
        shutil.rmtree(bench.root / "mine")
        assert bench.workspace(limits).left() == budgets[-1]
    assert [budget["tokens"] for budget in budgets] == [600, 200]
    (refused,) = bench.ask(limits, ("launch", bounded))
    assert refused.is_error and "exceed what is left" in refused.content[0].text
    assert not (bench.root / "mine").exists()


def test_a_person_owns_a_sweep_launched_under_a_removed_name(bench):
    bench.use_recipe()
    limits = Limits(runs=100)
    call = ("launch", {"grid": "mine.yaml", "again": True})
    assert not bench.ask(limits, call)[0].is_error
    identity = bench.root / "mine" / "launcher"
    shutil.rmtree(identity)
    identity.mkdir()
    (identity / "id").write_text("0123456789abcdef\n")  # as after a person's launch
    for tool in (call, ("cancel", {"sweep": "mine"}), ("retry", {"sweep": "mine"})):
        (refusal,) = bench.ask(limits, tool)
        assert refusal.is_error and "launched by a person" in refusal.content[0].text


@pytest.mark.parametrize("name", ["tokens", "usd", "hours"])
def test_each_limit_of_a_budget_holds(bench, name):
    bench.use_recipe()
    limits = Limits(**{name: 5.0})
    launch = {"grid": "mine.yaml", "again": True}
    beyond, within, again = bench.ask(
        limits,
        ("launch", launch | {name: 5.5}),
        ("launch", launch | {name: 4}),
        ("launch", launch | {"overrides": ["lr=[1,2,5]"], name: 2}),
    )
    assert f"5.5 {name} would exceed what is left of the budget: {name} 5" in beyond.content[0].text
    assert within.structured_content["budget_left"] == {name: 1.0}
    assert f"2 {name} would exceed what is left of the budget: {name} 1" in again.content[0].text
    assert [getattr(plan.budget, name) for plan in bench.launched] == [4]


def test_a_retry_counts_as_one_more_run(bench):
    bench.sweep.run({"lr": 9}, 0, "", "failed", reason="error")
    bench.sweep.save()
    allowance.reserve(SweepFolder(bench.workspace().store, "s"), ["a"], {})
    limits = Limits(runs=2)
    assert bench.call(limits, "retry", sweep="s")["runs"] == {}
    (second,) = bench.ask(limits, ("retry", {"sweep": "s"}))
    beyond = "1 more run would exceed what is left of the budget: runs 0"
    assert second.is_error and beyond in second.content[0].text
    assert len(bench.retried) == 1
    folder = SweepFolder(bench.workspace().store, "s")
    allowance.reserve(folder, [], {"tokens": 900.0}, folder.ensure_identity())
    (third,) = bench.ask(Limits(runs=9, tokens=500), ("retry", {"sweep": "s"}))
    beyond = "may still use 900 tokens of its own budget, but only 500 tokens are left"
    assert beyond in third.content[0].text


def test_simultaneous_launches_stay_within_the_budget(bench):
    """One server checks the budget before the other has recorded its launch."""
    first, second = bench.workspace(Limits(runs=8)), bench.workspace(Limits(runs=8))
    preview = first.preview("mine.yaml", [], again=True)

    class Meanwhile(dict[str, float]):
        """Requested amounts. The other server launches while they are read."""

        def __contains__(self, key: object) -> bool:
            if not bench.launched:
                second.launch(second.preview("mine.yaml", ["lr=[5,6]"], again=True), {})
            return super().__contains__(key)

    with pytest.raises(UsageError, match="at the same time would together exceed the budget for"):
        first.launch(preview, Meanwhile())
    assert len(bench.launched) == 1 and first.left() == {"runs": 2}


@pytest.mark.parametrize("text", ["runs", "dollars=5", "runs=-1", "runs=many", "usd=nan"])
def test_an_invalid_budget_is_refused(text):
    with pytest.raises(UsageError, match="--budget"):
        read_limits(text)
