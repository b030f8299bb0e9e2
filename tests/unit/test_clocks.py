"""Nothing depends on the time of day: hosts' clocks differ, and clocks are set."""

import json
import os
import time
from argparse import Namespace

import pytest
from support.answering import answering

from sweeper.alarms.records import read as read_alarms
from sweeper.commands.status_table import print_status
from sweeper.engine.checkpoints import Checkpoint, Place, SureClock, Vault
from sweeper.engine.errors import Unknown
from sweeper.engine.lora import LoraConfig
from sweeper.errors import StoreError
from sweeper.results.status import read_status
from sweeper.results.sweeps import Sweep
from sweeper.scheduler.failures import SERVICE_TRIES, backoff
from sweeper.store.remote import open_remote
from sweeper.sweep.states import Event
from sweeper.worker.rate_limits import Pauses

HOUR = 3600.0
YEAR = 365 * 24 * HOUR
PLACE = Place("a:train:0", "weights", "w")


def _utc(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


@pytest.mark.parametrize("ahead", [-HOUR, 0.0, 60.0, HOUR, YEAR])
def test_a_launcher_with_another_time_than_its_workers_waits_as_long(make_scene, ahead):
    scene = make_scene(1)
    run = scene.ids[0]
    scene.step()
    for attempt in range(1, SERVICE_TRIES + 1):  # no attempt is wasted while the quota is refused
        scene.worker(run, attempt, Event.CLAIMED)
        ended = _utc(scene.time_of_day() - ahead)
        scene.worker(run, attempt, Event.FAILED, reason="quota", ended=ended)
        scene.backend.end(scene.backend.submitted[-1])
        wait = backoff(Event.FAILED, "quota", attempt, run, attempt)
        scene.step()
        scene.step(wait - 2)
        assert len(scene.backend.submitted) == attempt
        scene.step(4)
        assert len(scene.backend.submitted) == attempt + 1


def test_displayed_times_follow_the_clock(make_scene):
    scene = make_scene(1, retries=1)
    run = scene.ids[0]
    scene.step()
    scene.finish(run, event=Event.FAILED, reason="error")
    scene.step()
    first = scene.observed()["observed"][run]
    scene.step()
    assert scene.observed()["observed"][run] == first
    scene.wall += HOUR
    scene.step()
    scene.step()
    hour, later = (int(text.split(" at ")[1][:2]) for text in (
        first, scene.observed()["observed"][run]
    ))  # fmt: skip
    assert (later - hour) % 24 == 1


def test_a_worker_whose_clock_is_set_is_not_paused_for_a_year(make_scene):
    scene = make_scene(1)
    run = scene.running()
    pause = {"reason": "rate_limit", "since": "2026-01-01T12:00:00Z"}
    for seconds in (10.0, 20.0, 3599.0):
        scene.beat(run, paused={**pause, "for_s": seconds}, time="2027-01-01T12:00:00Z")
        scene.step(20)
        scene.step(20)
    assert read_alarms(scene.folder) == []
    scene.beat(run, paused={**pause, "for_s": 3601.0}, time="2026-01-01T11:00:00Z")
    scene.step(20)
    scene.step(20)
    assert [alarm.rule for alarm in read_alarms(scene.folder)] == ["paused"]


def test_how_long_a_pause_lasts_is_the_workers_own_clocks(tmp_path):
    now = [0.0]
    pauses = Pauses(str(tmp_path), clock=lambda: now[0])
    pauses.feed(b"Sampling is paused. Reason: concurrent LoRA rate limit hit\n")
    now[0] = 42.0
    pause = pauses.current()
    assert pause.for_s == 42.0


@pytest.mark.parametrize("ahead", [-YEAR, -HOUR, 0.0, HOUR, YEAR])
def test_a_heartbeat_by_another_clock_is_no_silence(watched, ahead):
    first = watched.scene.ids[0]
    watched.wall = YEAR * 60
    watched.scene.worker(first, 1, Event.CLAIMED)
    for beats in range(4):
        watched.scene.beat(first, up_s=100.0 + 5 * beats, time=_utc(YEAR * 60 + ahead))
        assert watched.run(seconds=5.0).shown_state == "running"
        assert watched.run(seconds=0.0).beat == 0.0


def test_a_worker_that_has_been_dead_for_long_is_silent_soon(watched):
    first = watched.scene.ids[0]
    watched.wall = YEAR * 60
    watched.scene.worker(first, 1, Event.CLAIMED)
    watched.scene.beat(first, time=_utc(YEAR * 60 - HOUR))
    assert watched.run().shown_state == "running"
    run = watched.run(seconds=20.0)
    assert run.shown_state == "silent" and run.beat is not None and run.beat >= HOUR


def test_the_end_of_a_run_is_reckoned_from_what_its_worker_measured(watched):
    first = watched.scene.ids[0]
    watched.scene.worker(first, 1, Event.CLAIMED, started=_utc(time.time() + YEAR))
    watched.scene.beat(first, up_s=60.0)
    watched.rows(first, 0, 1)
    assert watched.run().eta == 240.0  # two of ten steps in a minute


@pytest.mark.parametrize("started", [-YEAR, -HOUR, HOUR, YEAR])
def test_status_tells_how_long_a_run_was_at_work(scene, capsys, started):
    first = scene.ids[0]
    began = _utc(time.time() + started)
    scene.worker(first, 1, Event.INTENT)
    scene.worker(first, 1, Event.SUBMITTED)
    scene.worker(first, 1, Event.CLAIMED, time=began, started=began)
    scene.beat(first, up_s=75.0)
    sweep, arguments = (
        Sweep(scene.folder, None),
        Namespace(json=False, state=None, where=None),
    )
    print_status(sweep, read_status(sweep), arguments)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("x=0"))
    assert line.split()[:2] == ["x=0", "running"] and "1m15s" in line.replace(" ", "")


def test_a_clock_set_forward_deletes_no_checkpoint(tmp_path):
    wall, running = [1_800_000_000.0], [50.0]
    vault = Vault(str(tmp_path), SureClock(lambda: wall[0], lambda: running[0]))
    vault.save(PLACE, Checkpoint("tiny", LoraConfig(rank=1), {}), ttl_seconds=None)
    vault.expire(PLACE, None)
    brief = PLACE._replace(name="brief")
    vault.save(brief, Checkpoint("tiny", LoraConfig(rank=1), {}), ttl_seconds=None)
    path = tmp_path / "a@train@0" / "weights" / "brief.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"expires": wall[0] + 7 * HOUR}))
    saving = tmp_path / "a@train@0" / "weights" / "late.json.1234.npz"  # its document follows
    saving.write_bytes(b"")
    os.utime(saving, (wall[0], wall[0]))
    wall[0] += YEAR
    running[0] += HOUR / 2
    assert vault.purge() == [] and saving.exists() and vault.load(brief)
    wall[0] -= 2 * YEAR  # set back: the checkpoint only lasts longer
    assert vault.purge() == []
    wall[0] += YEAR
    running[0] += 8 * HOUR
    wall[0] += 9 * HOUR
    with pytest.raises(Unknown, match="expired"):
        vault.load(brief)
    assert vault.purge() == [brief]


def test_a_store_that_refuses_the_time_says_so(monkeypatch):
    """S3 refuses requests whose time differs from its own by 15 minutes."""
    body = b"<Error><Code>RequestTimeTooSkewed</Code><Message>too large</Message></Error>"
    with answering(lambda _: (403, body)) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "testing")
        with pytest.raises(StoreError, match="is this machine's clock right"):
            open_remote("s3://clocks/x").read("sweep.json")
