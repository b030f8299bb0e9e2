"""Gates, buckets and failures by themselves; invalid limits; the meter's bounds."""

import argparse
import concurrent.futures
import threading
from typing import Any

import pytest

from sweeper.engine import meter
from sweeper.engine.__main__ import serve
from sweeper.engine.lifecycle import Settings, client_key, command
from sweeper.engine.limits import Bucket, Failures, Gate, Limits, add_limits, limits_of
from sweeper.errors import EngineError


def test_a_gate_lets_in_so_many_and_the_rest_in_their_order():
    gate, started = Gate(2), []

    def enter(key):
        return gate.enter(key, lambda: started.append(key))

    assert [enter(key) for key in "abcd"] == [True, True, False, False]
    assert enter("a")  # a session that is inside need not wait
    assert started == ["a", "b", "a"]
    assert gate.full() and len(gate.waiting()) == 2
    gate.forget("c")
    gate.leave("b")
    assert started[3:] == ["d"]
    gate.leave("nobody")
    assert gate.full()
    gate.leave("a")
    assert enter("e") and started[4:] == ["e"]


def test_a_gate_without_a_limit_stops_nobody():
    gate = Gate(None)
    assert all(gate.enter(str(n), lambda: None) for n in range(100)) and not gate.full()


def test_a_gate_never_holds_more_than_its_limit():
    gate, lock, inside, most = Gate(3), threading.Lock(), set(), []

    def visit(n):
        for i in range(30):
            key, begun = f"{n}.{i}", threading.Event()

            def start(key=key, begun=begun):
                with lock:
                    inside.add(key)
                    most.append(len(inside))
                begun.set()

            gate.enter(key, start)
            assert begun.wait(10)
            with lock:
                inside.discard(key)
            gate.leave(key)

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for visited in [pool.submit(visit, n) for n in range(6)]:
            visited.result()
    assert not inside and gate.waiting() == [] and not gate.full()
    assert len(most) == 180 and max(most) <= 3


def test_a_bucket_gives_a_second_of_requests_and_then_the_rate():
    now = [0.0]
    bucket = Bucket(4, lambda: now[0])
    assert [bucket.take() for _ in range(5)] == [0, 0, 0, 0, pytest.approx(0.25)]
    now[0] += 0.125
    assert bucket.take() == pytest.approx(0.125)
    now[0] += 0.125
    assert (bucket.take(), bucket.take()) == (0, pytest.approx(0.25))
    now[0] += 100
    assert [bucket.take() for _ in range(5)].count(0) == 4
    assert Bucket(None).take() == 0
    slow = Bucket(0.5, lambda: now[0])
    assert (slow.take(), slow.take()) == (0, pytest.approx(2))


def test_failures_are_a_share_and_the_same_for_a_seed():
    drawn = [Failures(0.2, 7) for _ in range(2)]
    first, second = ([failures.next() for _ in range(2000)] for failures in drawn)
    assert first == second
    assert 300 < sum(first) < 500
    assert first != [failures.next() for failures in [Failures(0.2, 8)] for _ in range(2000)]
    assert not any(failures.next() for failures in [Failures(0.0, 7)] for _ in range(100))


@pytest.mark.parametrize(
    "limits",
    [
        {"max_sessions": 0}, {"max_concurrent_samples": -1}, {"rate_limit": 0.0},
        {"rate_limit": float("nan")}, {"latency": -0.1}, {"fail_rate": 1.0},
        {"fail_rate": float("nan")},
    ],
)  # fmt: skip
def test_invalid_limits_are_refused(limits, tmp_path):
    with pytest.raises(EngineError, match=next(iter(limits))):
        serve(home=str(tmp_path), settings=Settings(limits=Limits(**limits)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "limits",
    [Limits(), Limits(8, 4, 2.5, 0.1, 0.25, 3), Limits(max_sessions=1, fail_rate=0.01)],
)
def test_limits_survive_the_command_line(limits):
    parser = argparse.ArgumentParser()
    add_limits(parser)
    assert limits_of(parser.parse_args(limits.arguments())) == limits


def test_the_command_has_all_settings_but_the_token(tmp_path):
    settings = Settings({"a/b": "/d"}, {"x/y": "a/b"}, Limits(max_sessions=2), "tml-" + "s" * 20)
    argv = command(str(tmp_path), 0, settings)
    assert argv[argv.index("--model") + 1] == "a/b=/d"
    assert argv[argv.index("--alias") + 1] == "x/y=a/b"
    assert argv[argv.index("--max-sessions") + 1] == "2" and not any("sss" in part for part in argv)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.invalid"])  # noqa: S104
def test_beyond_loopback_the_engine_needs_a_token(host, tmp_path, monkeypatch):
    monkeypatch.delenv("SWEEPER_ENGINE_TOKEN", raising=False)
    assert client_key(str(tmp_path)) == "tml-local"
    with pytest.raises(EngineError, match="needs a token: set \\$SWEEPER_ENGINE_TOKEN"):
        serve(host, home=str(tmp_path))
    for token in ("tml-short", "a" * 40):
        monkeypatch.setenv("SWEEPER_ENGINE_TOKEN", token)
        with pytest.raises(EngineError, match="must begin with tml- and have 20"):
            serve(host, home=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_meter_forgets_the_oldest_sessions_but_not_what_they_used():
    held = meter.Meter()
    count = meter.ENDED + 3
    for n in range(count):
        held.open(str(n), [f"tag{n}"], None, None)
        held.add(str(n), steps=1)
        if n != 1:
            held.end(str(n))
    held.add(str(count - 1), steps=1)
    report: Any = held.report()
    shown = [int(line["session_id"]) for line in report["sessions"]]
    assert shown == [*range(count - 1, 2, -1), 1]
    assert [line["steps"] for line in report["sessions"]] == [2] + [1] * meter.ENDED
    assert report["total"]["steps"] == count + 1
