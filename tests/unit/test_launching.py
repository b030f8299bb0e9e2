"""The pieces of a launch: the merged plan, the lock, the environment that runs get."""

import gc
import json
import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sweeper.backends.base import JobSpec
from sweeper.backends.local.backend import LocalBackend
from sweeper.engine import access_token
from sweeper.engine.lifecycle import EngineInfo
from sweeper.errors import EnvironmentFailure, NotFound, StoreError, UsageError
from sweeper.grid.launch import SECTION
from sweeper.launcher import background, environment_cleanup, launching, preflight
from sweeper.launcher.manifest import changes, merge, refuse_secrets
from sweeper.scheduler import account
from sweeper.scheduler.progress import Summary, exit_code, line
from sweeper.store.local import LocalStore
from sweeper.sweep import environment_file, lock
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.launch_settings import Launch, Share
from sweeper.sweep.plan import Plan, read
from sweeper.sweep.recipe import Snapshot
from sweeper.sweep.states import Event, State
from sweeper.terminal import duration, number, print_table


def test_a_field_of_launch_is_kept_in_the_plan_and_read_back():
    fields = {field.key or name for name, field in SECTION.fields.items()}
    assert fields == set(Launch._fields) - {"options", "debug"}
    given = Launch(
        backend="slurm", max_parallel=3, retries=2, timeout_s=60.0, python="p",
        requirements="r.txt", cwd="c", env={"A": "b"}, resume="never", lease_s=20.0, grace_s=5.0,
        log_path_field="a.b", metrics_dir="{log_path}/m", window="w", window_panes=2, gpus=1,
        per_gpu=2, sync_s=2.0, priority=2.0, warm=False, check_models=False, debug=True,
        options={"slurm": {"mem": "1G"}}, backends=(Share("slurm", 2), Share("local")),
    )  # fmt: skip
    same = [key for key, value in Launch()._asdict().items() if value == getattr(given, key)]
    assert not same, "each has a value that is not its default"
    document = json.loads(json.dumps(_plan()._replace(launch=given).document()))
    assert read(document, "sweep.json").launch == given


def _plan(*runs: tuple[str, str], created: str = "then", **more: Any) -> Plan:
    entries = [
        {"id": run, "name": name, "cell": name, "seed": None, "config": {}} for run, name in runs
    ]
    document = {"name": "s", "created": created, "launch": {}, "recipe": {}, "runs": entries}
    return read({**document, **more}, "sweep.json")


def test_a_relaunch_keeps_names_and_adds_cells():
    old = _plan(("a" * 12, "lr=1"), ("b" * 12, "lr=2"))
    new = _plan(("a" * 12, "lr=1,rank=8"), ("c" * 12, "lr=1,rank=16"), created="now")
    merged = merge(old, new)
    assert merged.created == "then"
    assert [(run.id[0], run.name) for run in merged.runs] == [
        ("a", "lr=1"),
        ("c", "lr=1,rank=16"),
        ("b", "lr=2"),
    ]
    assert merged.runs[0].cell == "lr=1,rank=8"
    assert [run.retired for run in merged.runs] == [False, False, True]


def test_a_name_is_never_given_twice():
    merged = merge(_plan(("a" * 12, "lr=1")), _plan(("c" * 12, "lr=1")))
    assert [run.name for run in merged.runs] == ["lr=1~cccccc", "lr=1"]


def test_a_run_that_comes_back_is_retired_no_more():
    first, second = _plan(("a" * 12, "lr=1")), _plan(("b" * 12, "lr=2"))
    again = merge(merge(first, second), first)
    assert [(run.id[0], run.retired) for run in again.runs] == [("a", False), ("b", True)]


def test_the_environment_of_runs_is_private(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path))
    monkeypatch.setenv("MY_KEY", "canary")
    monkeypatch.setenv("TMUX", "somebody-elses,1,2")
    path = environment_file.write("/sweeps/s", {"EXTRA": "1"})
    environment = json.loads(Path(path).read_text())
    assert (environment["MY_KEY"], environment["EXTRA"]) == ("canary", "1")
    assert "TMUX" not in environment and environment["SWEEPER_FOLDER"] == "/sweeps/s"
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    environment_file.forget(path)
    environment_file.forget(path)
    assert not Path(path).exists()


def test_a_missing_secret_is_named(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(EnvironmentFailure, match="the secret NO_SUCH_KEY is not set"):
        preflight.require_secrets(["NO_SUCH_KEY"])


def test_unneeded_environments_are_listed(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    store = LocalStore(str(tmp_path / "sweeps"))
    names = ("over", "open", "held", "young", "mine", "requeued", "preempted", "given_up")
    folders = {name: f"{store.root}/{name}" for name in names}
    paths = {name: Path(environment_file.write(folder, {})) for name, folder in folders.items()}
    broken = tmp_path / "home" / "environments" / "broken.json"
    broken.write_text("{")
    for path in (*paths.values(), broken):
        if path != paths["young"]:
            os.utime(path, (1, 1))
    store.create("over/state/a/1.succeeded.json", b"{}")
    store.create("open/state/a/1.claimed.json", b"{}")
    needed = (("requeued", "slurm", 1), ("preempted", "local", 1), ("given_up", "slurm", 21))
    for name, backend, attempts in needed:
        for attempt in range(1, attempts + 1):  # of a run that may no longer be in the grid
            store.create(f"{name}/state/a/{attempt}.preempted.json", b"{}")
        plan = {"name": name, "launch": {"backend": backend}, "recipe": {}, "runs": []}
        store.create(f"{name}/sweep.json", json.dumps(plan).encode())
    with lock.holding_sweep(SweepFolder(store, "held")):
        for path in environment_cleanup.unused_files(but=folders["mine"]):
            environment_file.forget(path)
    left = {name for name, path in paths.items() if path.exists()}
    assert left == {"open", "held", "young", "mine", "requeued"}
    assert not broken.exists()


def test_sweeps_using_an_engine_are_known_by_its_key(tmp_path, monkeypatch):
    """The engine's address does not matter; an unreadable sweep may be running."""
    home = str(tmp_path / "home")
    monkeypatch.setenv("SWEEPER_HOME", home)
    os.makedirs(f"{home}/engine")
    access_token.keep(home, "tml-ours")
    store = LocalStore(str(tmp_path / "sweeps"))
    for name, key in (("open", "tml-ours"), ("over", "tml-ours"), ("hosted", "tml-another")):
        store.create(f"{name}/state/a/1.claimed.json", b"{}")
        environment_file.write(f"{store.root}/{name}", {"TINKER_API_KEY": key})
    store.create("over/state/a/1.succeeded.json", b"{}")
    environment_file.write("nowhere://at/all/s", {"TINKER_API_KEY": "tml-ours"})
    info = EngineInfo("http://127.0.0.1:1", 1, "t", "0", home)
    assert set(environment_cleanup.sweeps_using(info)) == {
        "nowhere://at/all/s",
        f"{store.root}/open",
    }


def test_a_sweep_that_is_not_there_names_those_that_are(tmp_path):
    """Or the first of them, and the number of the others."""
    store = LocalStore(str(tmp_path))
    for n in range(8):
        store.create(f"s{n}/sweep.json", b"{}")
    more = r"there is s0, s1, s2, s3, s4 and 3 more \(`sweeper status --root .*`\)$"
    with pytest.raises(NotFound, match=more):
        SweepFolder(store, "other").read_plan()


def test_an_outage_after_all_is_over_fails_no_launch(make_scene, monkeypatch):
    scene = make_scene(1)
    scene.worker(scene.ids[0], 1, Event.SUCCEEDED)

    def unreachable(*_: Any) -> bool:
        raise StoreError("no answer")

    monkeypatch.setattr(environment_cleanup, "is_needed_later", unreachable)
    summary = launching.drive(f"{scene.store.root}/s", lambda _: None)
    assert summary.counts[State.SUCCEEDED] == 1


def test_a_detached_launcher_may_outlive_its_caller(tmp_path):
    """Python does not warn about it (pytest makes an error of the warning)."""
    background.start_with_log(["sleep", "1"], str(tmp_path / "log"))
    gc.collect()


def test_a_job_may_outlive_its_backend(tmp_path):
    """Under load, a worker may end after the launcher has read its outcome."""
    LocalBackend(str(tmp_path)).submit([JobSpec("token", "x", ["sleep", "1"], str(tmp_path), {})])
    gc.collect()


def test_the_error_of_a_launcher_that_does_not_start_is_raised(tmp_path):
    log = tmp_path / "log"
    log.write_text("of the launch before\n")
    for program, message in (
        ("echo begun; echo 'sweeper: the queue is closed'; exit 6", "the queue is closed"),
        ("exit 1", "the launcher ended with exit code 1"),
    ):
        see_to_it = background.start_with_log(["sh", "-c", program], str(log))
        with pytest.raises(EnvironmentFailure, match=f"^{message}$"):
            while True:
                see_to_it()


def test_a_launcher_that_gave_up_has_not_begun(tmp_path):
    folder = SweepFolder(LocalStore(str(tmp_path)), "s")
    before = background.published(folder)
    assert not background.has_begun(folder, before)
    folder.store.replace(folder.observations, b'{"held": null}')
    assert background.has_begun(folder, before)
    message = "no such queue"
    older = {"held": f"the launcher gave up: {message}"}  # as it was published until 0.1
    for document in ({"held": message, "gave_up": True}, older):
        folder.store.replace(folder.observations, json.dumps(document).encode())
        with pytest.raises(EnvironmentFailure, match=r"^no such queue$"):
            background.has_begun(folder, before)


def test_changed_launch_options_are_reported():
    old = _plan()
    assert changes(old, old) == []
    options = {"max_parallel": 4, "env": {"SECRET": "x"}, "timeout_s": 60.0}
    message = "launch options have changed (max_parallel 8 -> 4, timeout none -> 60, env)"
    assert changes(old, _plan(launch=options)) == [message]
    old = _plan(launch={"slurm": {"partition": "gpu"}, "aws_batch": {}})
    (warning,) = changes(old, _plan())
    assert "slurm {'partition': 'gpu'} -> none" in warning and "aws" not in warning
    assert changes(_plan(launch={"slurm": {}}), _plan()) == []


def test_a_record_without_its_time_loses_nothing():
    """It keeps the copy of the code that its runs are to execute."""
    snapshot = Snapshot("1", "s/code/1.tar.gz", "/here", ".")
    plan = _plan()._replace(created=None, provenance={"host": "h"}, snapshot=snapshot)
    assert read(plan.document(), "sweep.json").snapshot == snapshot


def test_a_plan_holds_no_secret(monkeypatch):
    monkeypatch.setenv("MY_KEY", 'canary"0815')
    refuse_secrets(_plan(grid="secrets: [MY_KEY]"), ["MY_KEY"])
    with pytest.raises(UsageError, match="contains the value of the secret MY_KEY"):
        refuse_secrets(_plan(("a" * 12, 'x=is canary"0815')), ["MY_KEY"])
    monkeypatch.setenv("MY_KEY", "short")
    refuse_secrets(_plan(grid="short"), ["MY_KEY"])


def test_earlier_launches_stay_on_record():
    run = ("a" * 12, "lr=1")
    first = _plan(run, provenance={"time": "t1", "command": ["a"]})
    second = merge(first, _plan(run, provenance={"time": "t2"}))
    third = merge(second, _plan(run))
    assert [launch["time"] for launch in third.launches] == ["t2", "t1"]


def _summary(to_start: int = 0, **counts: int) -> Summary:
    return Summary(Counter({State(k): v for k, v in counts.items()}), to_start, None)


def test_progress_in_a_line():
    text = line(_summary(6, succeeded=7, running=4, failed=1, planned=6))
    assert text.endswith("7/18 succeeded, 4 running, 1 failed, 6 to start")
    # Runs of later stages count from the beginning.
    staged = _summary(14, planned=8)._replace(to_come=6)
    assert line(staged).endswith("0/14 succeeded, 14 to start")


@pytest.mark.parametrize(
    ("summary", "code"),
    [
        (_summary(succeeded=2), 0),
        (_summary(succeeded=1, failed=1), 3),
        (_summary(succeeded=1, cancelled=1), 3),
        (_summary(succeeded=1, running=1, failed=1), 4),
        (_summary(1, succeeded=1, failed=1), 4),
        (_summary(failed=3, planned=2)._replace(held="why", held_back=2), 4),
        (_summary(failed=3)._replace(held="why"), 3),
    ],
)
def test_exit_codes(summary, code):
    assert exit_code(summary) == code


def test_tables(capsys):
    print_table(["run", "value"], [("x=[bold]", 0.123456), ("y", None)])
    shown = capsys.readouterr().out
    assert "x=[bold]" in shown and "0.1235" in shown
    assert shown.splitlines()[-1].split() == ["y", "-"]


def test_values_and_durations():
    shown = [number(v) for v in (3.0, 1e-4, float("nan"), 1e9, "x", 7)]
    assert shown == ["3", "0.0001", "nan", "1e+09", "x", "7"]
    assert [duration(s) for s in (None, 47.2, 200, 7500)] == ["-", "47s", "3m20s", "2h05m"]


def test_a_launcher_in_a_window_has_the_quota_of_who_launched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEEPER_QUOTA", "s3://bucket/quota")
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    expected = {"SWEEPER_QUOTA": "s3://bucket/quota", "XDG_CONFIG_HOME": f"{tmp_path}/config"}
    assert account.handed_on() == expected
