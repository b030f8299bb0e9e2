"""The usage of a sweep never decreases; it comes from outcomes, usage files and heartbeats."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import written

from sweeper.backends import open_backend
from sweeper.errors import EnvironmentFailure, Unreachable, UsageError
from sweeper.scheduler import account
from sweeper.scheduler.budgets import (
    AccountBudget,
    AttemptUsage,
    Limits,
    Spending,
    configured_budget,
)
from sweeper.scheduler.context import Context
from sweeper.scheduler.parallelism import name_of
from sweeper.store.documents import encode, read_json
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.heartbeats import Heartbeats
from sweeper.sweep.launcher import Service
from sweeper.sweep.plan import Budget
from sweeper.sweep.run_table import RunTable


def used(tokens: int) -> dict[str, Any]:
    return {"models": {"m": {"train": tokens}}}


class Sweep:
    """A recorded sweep, and its launcher's view of it."""

    def __init__(self, made: Any) -> None:
        self.made = made
        made.save()
        store = LocalStore(str(made.root))
        backend = open_backend("local", made.name, str(made.folder), {})
        folder = SweepFolder(store, made.name)
        self.context = Context(folder, backend)
        self.run_table = RunTable(folder, self.context.plan)
        self.heartbeats = Heartbeats(folder, self.context.clock)

    def spending(self, account: AccountBudget | None = None, **limits: Any) -> Spending:
        budget = Budget(**limits) if limits else None
        attempts = AttemptUsage(self.context, self.run_table, self.heartbeats)
        return Spending(budget, attempts, account)

    def reached(self, spending: Spending) -> str | None:
        self.run_table.read()
        spending.check()
        return spending.reached

    def beat(self, run: str, attempt: int, **body: Any) -> None:
        folder = self.made.folder / "heartbeats"
        folder.mkdir(exist_ok=True)
        (folder / f"{run}.{attempt}").write_text(json.dumps({"schema": 1, **body}))


@pytest.fixture
def written_sweep(tmp_path: Path) -> Any:
    return written.Written(tmp_path / "root", "s", {"lr": [1, 2]})


def test_all_attempts_of_all_runs_count(written_sweep: Any) -> None:
    written_sweep.run({"lr": 1}, 0, state="preempted", usage=used(100), wall_s=3600.0)
    written_sweep.run({"lr": 1}, 0, attempt=2, usage=used(200), wall_s=3600.0, paused_s=1800.0)
    written_sweep.run({"lr": 2}, 0, usage=used(50), wall_s=3600.0, retired=True)
    sweep = Sweep(written_sweep)
    assert sweep.reached(sweep.spending(tokens=351)) is None
    message = sweep.reached(sweep.spending(tokens=350))
    assert message is not None and "the budget is spent (350 of 350 tokens)" in message
    assert "and running jobs are stopped" in message
    assert sweep.reached(sweep.spending(hours=2.6)) is None
    paused = sweep.spending(hours=2.5, on_reach="pause")
    assert "2.50 of 2.50 hours of runs" in (sweep.reached(paused) or "")
    assert not paused.is_over


def test_a_lost_attempt_counts_as_last_reported(written_sweep: Any) -> None:
    lost = written_sweep.run({"lr": 1}, 0, state="lost")
    sweep = Sweep(written_sweep)
    sweep.beat(lost, 1, usage=used(70), up_s=60, paused_s=-5)
    spending = sweep.spending(tokens=70)
    assert sweep.reached(spending) is not None
    (written_sweep.folder / "heartbeats" / f"{lost}.1").unlink()
    assert sweep.reached(spending) is not None


def test_usage_counts_while_its_files_cannot_be_read(written_sweep: Any) -> None:
    run = written_sweep.run({"lr": 1}, 0, state="running")
    sweep = Sweep(written_sweep)
    sweep.beat(run, 1, usage=used(90), up_s=60)
    spending = sweep.spending(tokens=80)
    assert sweep.reached(spending) is not None
    event = written_sweep.folder / "state" / run / "1.failed.json"
    event.write_text("{")
    (written_sweep.folder / "heartbeats" / f"{run}.1").unlink()
    assert sweep.reached(spending) is not None
    event.write_text(json.dumps({"schema": 1, "time": "2026-11-22T12:00:00Z", "usage": used(95)}))
    assert "95 of 80" in (sweep.reached(spending) or "")


def test_usage_files_are_newer_than_heartbeats(written_sweep: Any) -> None:
    run = written_sweep.run({"lr": 1}, 0, state="failed")
    sweep = Sweep(written_sweep)
    sweep.beat(run, 1, usage=used(10))
    folder = written_sweep.folder / "attempts" / f"{run}.1" / "usage"
    folder.mkdir(parents=True)
    (folder / "7.json").write_text(json.dumps(used(30)))
    assert "30 of 30" in (sweep.reached(sweep.spending(tokens=30)) or "")


def test_a_budget_in_dollars_needs_prices(written_sweep: Any, config_file: Path) -> None:
    written_sweep.run({"lr": 1}, 0, usage=used(2_000_000))
    sweep = Sweep(written_sweep)
    assert "no price is known for m" in (sweep.reached(sweep.spending(usd=5000)) or "")
    table = config_file.with_name("prices.json")
    prices = {"date": "2026-11-01", "models": [{"tinker_id": "m", "train": 1000}]}
    table.write_text(json.dumps(prices))
    assert sweep.reached(sweep.spending(usd=2000.01)) is None
    message = sweep.reached(sweep.spending(usd=1999)) or ""
    assert "2,000.00 of 1,999.00 dollars, at prices of 2026-11-01" in message
    table.write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        sweep.spending(usd=1)
    assert sweep.reached(sweep.spending(tokens=1)) is not None


class Accounts:
    """The budget of an account, as launchers of several sweeps see it."""

    def __init__(self, folder: Path, budget: Budget, per: str = "all") -> None:
        self.folder, self.limits = folder, Limits(budget, per)
        self.now, self.wall = 0.0, 1_800_000_000.0
        self.accounts: dict[str, AccountBudget] = {}

    def launcher(self, name: str, tokens: int, **plan: Any) -> tuple[Sweep, Spending]:
        made = written.Written(self.folder / "root", name, {"lr": [1]})
        made.document |= plan
        made.run({"lr": 1}, 0, usage=used(tokens), wall_s=3600.0)
        return self.driving(Sweep(made))

    def driving(self, sweep: Sweep) -> tuple[Sweep, Spending]:
        context = replace(sweep.context, clock=lambda: self.now, wall=lambda: self.wall)
        place = LocalStore(str(self.folder / "quota"))
        account = self.accounts[sweep.made.name] = AccountBudget(
            context, place, "a/spent", self.limits
        )
        return sweep, sweep.spending(account)

    def spent(self, name: str) -> int:
        """Return the tokens of the account that the last launcher of this sweep knows of."""
        return self.accounts[name].spent.usage.counts.tokens

    def reached(self, launcher: tuple[Sweep, Spending]) -> str | None:
        self.now += 10
        return launcher[0].reached(launcher[1])


def test_all_sweeps_of_an_account_share_its_budget(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, Budget(tokens=1000))
    first, second = accounts.launcher("first", 600), accounts.launcher("second", 399)
    assert accounts.reached(first) is None
    assert accounts.reached(second) is None
    third = accounts.launcher("third", 1)
    message = accounts.reached(third) or ""
    assert "the budget of your account is spent (1,000 of 1,000 tokens)" in message
    assert "config.toml and launch again to continue" in message
    assert accounts.reached(first) == message
    assert first[1].is_over
    again = accounts.driving(first[0])  # its launcher was killed: nothing counts twice
    assert accounts.reached(again) == message


def test_a_budget_per_day_or_month_starts_anew(tmp_path: Path) -> None:
    for per, seconds in (("day", 86_400), ("month", 32 * 86_400)):
        accounts = Accounts(tmp_path / per, Budget(hours=1.0, on_reach="pause"), per)
        first = accounts.launcher("first", 1)
        assert "1.00 of 1.00 hours" in (accounts.reached(first) or "")
        assert not first[1].is_over
        accounts.wall += seconds
        assert accounts.reached(first) is None


def test_a_sweep_made_anew_adds_to_what_the_removed_one_spent(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, Budget(tokens=1000))
    first = accounts.launcher("s", 600)
    assert accounts.reached(first) is None
    shutil.rmtree(tmp_path / "root")
    again = accounts.launcher("s", 500, created="later")
    assert "1,100 of 1,000 tokens" in (accounts.reached(again) or "")


def test_known_spending_counts_while_the_record_is_away(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, Budget(tokens=1000))
    first = accounts.launcher("first", 600)
    accounts.reached(accounts.launcher("second", 500))
    assert accounts.reached(first) is not None
    (tmp_path / "quota").rename(tmp_path / "away")
    assert accounts.reached(first) is not None


def test_nothing_starts_while_an_accounts_spending_is_unreadable(tmp_path: Path) -> None:
    """Readable spending, and that of this sweep, still counts."""
    accounts = Accounts(tmp_path, Budget(tokens=1000))
    first = accounts.launcher("first", 300)
    assert accounts.reached(first) is None
    folder = tmp_path / "quota" / "a" / "spent"
    [spent_file] = folder.iterdir()
    for name in "0", "z":
        (folder / f"{name}.json").write_text("{")
    message = "cannot read the account's spending: .*/a/spent/[0z].json: damaged"
    with pytest.raises(Unreachable, match=message):
        accounts.reached(first)
    second = accounts.launcher("second", 200)
    with pytest.raises(Unreachable, match=message):
        accounts.reached(second)
    assert accounts.spent("second") == 500
    for name in "0", "z":
        (folder / f"{name}.json").unlink()
    spent_file.write_text("{")  # by an earlier launcher: it is not overwritten
    again = accounts.driving(first[0])
    message = r"cannot report this sweep's spending to the account: .*damaged"
    with pytest.raises(Unreachable, match=message):
        accounts.reached(again)
    assert spent_file.read_text() == "{"
    third = accounts.launcher("third", 800)
    assert "1,000 of 1,000 tokens" in (accounts.reached(third) or "")


def test_the_last_spending_is_reported_when_a_launcher_ends(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, Budget(tokens=1000))
    made = written.Written(tmp_path / "root", "first", {"lr": [1]})
    run = made.run({"lr": 1}, 0, state="running")
    sweep, spending = first = accounts.driving(Sweep(made))
    second = accounts.launcher("second", 1)
    sweep.beat(run, 1, usage=used(600), up_s=60)
    assert accounts.reached(first) is None
    event = made.folder / "state" / run / "1.failed.json"
    event.write_text(json.dumps({"schema": 1, "time": "2026-11-22T12:00:00Z", "usage": used(999)}))
    assert sweep.reached(spending) is None  # too soon after the last report: not reported yet
    assert accounts.spent("first") == 999
    assert second[0].reached(second[1]) is None
    spending.end()
    assert "1,000 of 1,000 tokens" in (accounts.reached(second) or "")


def test_spending_reported_under_the_old_name_counts_once(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, Budget(tokens=1000))
    first = accounts.launcher("first", 600)
    assert accounts.reached(first) is None
    folder = tmp_path / "quota" / "a" / "spent"
    [spent_file] = folder.iterdir()
    spent_file.rename(folder / f"{name_of(first[0].context.store.root, 'first')}.json")
    again = accounts.driving(first[0])
    assert accounts.reached(again) is None
    assert accounts.spent("first") == 600


def test_a_moved_or_copied_sweep_counts_once(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, Budget(tokens=1000))
    first = accounts.launcher("first", 600)
    assert accounts.reached(first) is None
    made = first[0].made

    def elsewhere(name: str, tokens: int) -> tuple[Sweep, Spending]:
        (tmp_path / name).mkdir()
        shutil.copytree(made.folder, tmp_path / name / "first")
        for recorded in "runs", "attempts":
            shutil.rmtree(tmp_path / name / "first" / recorded)
        copied = written.Written(tmp_path / name, "first", {"lr": [1]})
        copied.run({"lr": 1}, 0, usage=used(600), wall_s=3600.0)
        if tokens:
            copied.run({"lr": 1}, 1, usage=used(tokens), wall_s=60.0)
        return accounts.driving(Sweep(copied))

    for name, tokens, expected in (("moved", 0, 600), ("copy", 150, 750), ("other", 50, 800)):
        other = elsewhere(name, tokens)
        assert accounts.reached(other) is None
        assert accounts.spent("first") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[budget]\nusd = -1\n", "budget.usd is -1"),
        ("[budget]\nper = 'day'\n", "budget needs usd, tokens or hours"),
        ("[budget]\nusd = 1\nper = 'week'\n", "budget.per"),
        ("[budget]\nusdd = 1\n", "unknown key 'usdd' in budget; did you mean 'usd'?"),
        ("[budget\n", "cannot be read"),
    ],
)
def test_a_malformed_budget_in_the_configuration_is_refused(
    config_file: Path, text: str, message: str
) -> None:
    assert configured_budget() is None
    config_file.write_text("[budget]\nusd = 20\nper = 'month'\n")
    assert configured_budget() == (Budget(usd=20.0), "month")
    config_file.write_text(text)
    with pytest.raises(EnvironmentFailure) as caught:
        configured_budget()
    assert message in str(caught.value)
    assert str(config_file) in str(caught.value)


def test_a_launcher_starts_nothing_until_the_spending_is_readable(
    make_scene: Any, tmp_path: Path, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make_scene()
    monkeypatch.setenv(account.PLACE, str(tmp_path / "quota"))
    config_file.write_text("[budget]\ntokens = 1000\n")
    plan = read_json(scene.store, scene.folder.plan) | {"service": "tinker"}
    scene.store.replace(scene.folder.plan, encode(plan))
    scene.scheduler = scene.new_scheduler()
    of_account = account.account_of(scene.folder.read_plan(), Service(), account.Quota(""))
    damaged = tmp_path / "quota" / str(of_account) / "spent" / "other.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    for _ in range(2):
        summary = scene.step()
        assert f"cannot read the account's spending: {damaged}: " in summary.unreachable
        assert (summary.finished, scene.backend.submitted) == (False, [])
        scene.clock.sleep(5)
    damaged.unlink()
    assert scene.step().unreachable is None
    assert len(scene.backend.submitted) == 2
