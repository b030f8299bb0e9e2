"""Each alarm rule: when it must be raised, and when not."""

import json
import math
import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sweeper.alarms.history import Evidence, Failed, History, Vitals, deviation, median, role_of
from sweeper.alarms.rules import CLOCK_RULES, ROW_RULES, judge, judge_clock
from sweeper.alarms.watcher import summarise
from sweeper.common.alarm_thresholds import RULES, WINDOW, resolve

LOSS, REWARD, LENGTH = "train_mean_nll", "env/all/reward/total", "env/all/ac_tokens_per_turn"
MIXED, GOOD = "env/all/by_group/frac_mixed", "env/all/by_group/frac_all_good"
FALLING = [7.0, 4.6, 2.7, 2.0, 1.6, 1.1, 1.1, 1.2, 1.1, 0.8, 1.0, 0.7, 0.7, 0.5, 0.5, 0.4, 0.3, 0.2]


def no_failure(rule: str, error: Exception) -> None:
    raise AssertionError(rule) from error


def run(
    rows: Iterable[Mapping[str, Any]],
    extra: Mapping[str, list[float]] | None = None,
    given: Mapping[str, Any] | None = None,
) -> dict[str, Evidence]:
    """Return the first evidence of each rule in these rows."""
    history, limits, evidence_of = History(), resolve(given), dict[str, Evidence]()
    for step, row in enumerate(rows):
        more = {role: values[step] for role, values in (extra or {}).items()}
        history.add({"step": step, **row}, more)
        for rule, evidence in judge(history, limits, no_failure).items():
            evidence_of.setdefault(rule, evidence)
    return evidence_of


def of(key: str, values: Iterable[float], **others: Iterable[float]) -> list[dict[str, float]]:
    return [{key: value} for value in values]


def both(**columns: list[float]) -> list[dict[str, float]]:
    names = {"reward": REWARD, "length": LENGTH, "mixed": MIXED, "good": GOOD}
    count = len(next(iter(columns.values())))
    return [{names.get(k, k): v[n] for k, v in columns.items()} for n in range(count)]


def test_a_run_that_learns_raises_no_alarm():
    rewards = [0.1, 0.15, 0.1, 0.3, 0.25, 0.4, 0.35, 0.5, 0.45, 0.6, 0.55, 0.7, 0.6, 0.8, 0.9, 0.9]
    size = len(rewards)
    rows = both(
        reward=rewards, mixed=[0.6] * size, good=[0.1] * size, length=[4.0, 4.2] * (size // 2),
        entropy=[1.0 - n / 20 for n in range(size)], kl=[1e-3] * size,
    )  # fmt: skip
    assert run(rows) == {} and run(of(LOSS, [*FALLING, 0.21, 0.16, 0.05, 0.15, 0.04])) == {}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_values_raise_nan(value):
    raised = run([{LOSS: 1.0, "any/key": 2.0}, {LOSS: 0.9, "any/key": value}])
    assert raised["nan"][:2] == ("any/key", 1)
    assert raised["nan"].value == pytest.approx(value, nan_ok=True)
    assert (
        run([{"text": "NaN", "n": 10**400, "flag": True, "none": None, "list": [math.nan]}]) == {}
    )


@pytest.mark.parametrize(("text", "value"), [("NaN", math.nan), ("-inf", -math.inf)])
def test_texts_for_non_finite_values_raise_nan(text, value):
    """Strict JSON has no NaN or infinity, so some programs write texts."""
    evidence = run([{LOSS: 1.0}, {LOSS: text}])["nan"]
    assert evidence[:2] == (LOSS, 1) and evidence.value == pytest.approx(value, nan_ok=True)


def test_null_after_numbers_raises_nan():
    """Some programs write null for NaN, but tables also have null between rare evaluations."""
    evidence = run([{LOSS: value} for value in (3.0, 2.0, 1.5, None)])["nan"]
    assert evidence[:2] == (LOSS, 3)
    assert evidence.message == (
        f"{LOSS} is null at step 3; it was 1.5 before (some programs write null for NaN)"
    )
    rare = [1.0, None, None, 0.9, None, None, 0.8, None, None]
    assert run([{LOSS: value} for value in rare]) == {}
    assert "nan" in run([{LOSS: value} for value in [*rare, None]])


def test_a_rising_loss_raises_divergence():
    evidence = run(of(LOSS, [7.11, 4.21, 170, 27.4, 54.8, 163, 40.3]))["divergence"]
    assert evidence.step == 5 and evidence.value == 54.8
    assert evidence.bound == pytest.approx(2 * 7.11) and "7.11 at the start" in evidence.message
    given_back = run(of(LOSS, [*FALLING, *([4.5] * 6)]))["divergence"]
    assert given_back.bound is not None and given_back.bound < 4.5
    assert "divergence" not in run(of(LOSS, [*FALLING, 4.5, 4.5, 0.3, 0.2, 0.2, 0.2]))
    assert run(of(LOSS, [1.0, 1.3, 0.8, 1.2, 0.9, 1.3, 1.2, 0.8, 1.3, 1.25, 1.2, 1.3])) == {}


def test_a_loss_below_zero_does_not_diverge_by_its_ratio():
    assert run(of("loss", [-0.01, 0.02, -0.03, 0.05, 0.04, -0.05, 0.06, 0.05, 0.06])) == {}


def test_a_jump_of_the_loss_raises_spike():
    raised = run(of(LOSS, [*FALLING, 9.0, 0.2, 0.2]))
    assert set(raised) == {"spike"} and raised["spike"].step == len(FALLING)
    assert run(of(LOSS, [*FALLING, 0.9, 0.2, 0.2])) == {}  # large for 0.2, small for 7
    assert run(of(LOSS, [7.0, 5.0, 60.0, 4.0, 3.0, 2.0])) == {}  # too early to tell
    assert run(of(LOSS, [*FALLING, 9.0]), given={"spike": {"lost": 2.0}}) == {}


def test_a_lost_reward_raises_collapse():
    evidence = run(of(REWARD, [0.3, 0.4, 0.5, *([0.6] * 20), *([0.02] * 12)]))["collapse"]
    assert evidence.bound == pytest.approx(0.3 * 0.6) and evidence.step is not None
    assert evidence.step <= 33
    noisy = [0.0, 0.3, 0.1, 0.0, 0.2, 0.3, 0.0, 0.1, 0.3, 0.2] * 3
    assert run(of(REWARD, noisy)) == {} and run(of(REWARD, [0.0] * 30)) == {}
    worse = run(of("reward", [-5.0, -4.0, -3.0, -2.0, *([-1.0] * 20), *([-5.0] * 12)]))
    assert set(worse) == {"collapse"}
    assert run(of("reward", [-5.0, -4.0, -3.0, -2.0, -1.0, -1.0, -1.0] * 2)) == {}


def test_a_sparse_reward_has_not_collapsed():
    draw = random.Random(0)
    for share in (0.05, 0.1, 0.2, 0.4):
        raised = run(of(REWARD, [float(draw.random() < share) for _ in range(150)]))
        assert "collapse" not in raised
    learned = [float(draw.random() < 0.6) for _ in range(60)]
    assert "collapse" in run(of(REWARD, [*learned, *([0.0] * 15)]))


def test_a_loss_that_leaps_about_zero_does_not_diverge():
    draw, raised = random.Random(0), list[bool]()
    for _ in range(10):
        noise = [draw.gauss(0.02, 0.02) for _ in range(200)]
        raised.append("divergence" in run(of("loss", noise)))
    assert sum(raised) == 0  # there were 7 before the rule considered step noise
    # Such jumps far above the first value raise it at once.
    wild = run(of("loss", [7.3, 6.5, 5.7, 10.0, 1112.9, 34.2, 2272.8, 699.8]))
    assert wild["divergence"].step == 6


def test_low_entropy_without_success_raises_entropy():
    low = [2.0, 1.0, 0.5, *([0.001] * 8)]
    assert set(run(both(entropy=low, reward=[0.2] * 11))) == {"entropy"}
    assert run(both(entropy=low, reward=[0.97] * 11)) == {}  # confident and correct
    assert run(both(entropy=low, good=[0.8] * 11, mixed=[0.2] * 11)) == {}
    assert run(both(entropy=[1.0, 0.1, 0.05, *([0.03] * 8)])) == {}
    raised = {"entropy": {"below": 0.05}}
    assert set(run(both(entropy=[1.0, 0.1, 0.05, *([0.03] * 8)]), given=raised)) == {"entropy"}


@pytest.mark.parametrize(
    ("values", "step"),
    [([0.09, 0.1], 0), ([0.0002, 0.0002, 0.03], 2), ([0.0002, 0.002, 0.002], None),
     ([0.0005, 0.001, 0.006], 2), ([0.00001, 0.0002, 0.0009], None), ([0.003] * 9, None),
     ([0.001, 0.004, 0.01, 0.05, 0.2], None)],
)  # fmt: skip
def test_a_sampler_that_differs_from_the_trainer_raises_mismatch(values, step):
    """A later difference is drift of the policy, which the rule kl judges."""
    evidence = run(of("optim/kl_sample_train_v2", values)).get("mismatch")
    assert (evidence and evidence.step) == step
    assert run(of("kl_policy_base", [0.2] * 3)) == {}
    for first in (0.00001, -0.002):
        evidence = run(of("optim/kl_sample_train_v2", [first, 0.004]))["mismatch"]
        assert evidence.bound == 0.001
        assert f"more than 0.001; its first value is {first:.2g}" in evidence.message


def test_growing_gradients_raise_gradient():
    key, usual = "optim/unclipped_grad_l2:mean", [1.0, 1.4, 0.8, 1.1, 0.9] * 3
    evidence = run(of(key, [*usual, 30.0, 45.0, 60.0]))["gradient"]
    assert (evidence.key, evidence.step, evidence.bound) == (key, 17, 10.0)
    assert "its median before was 1" in evidence.message
    assert run(of("grad_norm", [*usual, 300.0, 1.0, 200.0, 1.2])) == {}  # spikes
    assert run(of("grad_norm", [1.2**step for step in range(40)])) == {}  # slow growth
    assert run(of("grad_norm", [0.1, 0.1, 9.0, 9.0, 9.0])) == {}  # a warm-up
    assert run(of("grad_norm", [*usual, 30.0, 45.0, 60.0]), given={"gradient": None}) == {}


def test_a_large_kl_raises_kl():
    key = "kl_policy_base"
    assert set(run(of(key, [0.001, 0.7, 0.8, 0.9]))) == {"kl"}
    assert run(of(key, [0.6, 0.07, 0.05, 0.02])) == {}
    assert set(run(of(key, [0.1] * 3), given={"kl": {"above": 0.05}})) == {"kl"}
    assert run(of(key, [5.0] * 5), given={"kl": None}) == {}


def test_groups_without_mixed_rewards_raise_no_signal():
    evidence = run(both(mixed=[0.0] * 8, good=[0.0] * 8))["no_signal"]
    assert (evidence.key, evidence.step, evidence.value) == (MIXED, 7, 0.0)
    assert run(both(mixed=[0.0] * 7, good=[0.0] * 7)) == {}
    assert run(both(mixed=[0.0] * 12, good=[1.0] * 12)) == {}  # all tasks are solved
    assert run(both(mixed=[0.0, 0.125] * 6, good=[0.0] * 12)) == {}
    shares = {MIXED: 0.0, GOOD: 0.25, "env/all/by_group/frac_all_bad": 0.75}
    message = run([shares] * 8)["no_signal"].message
    assert "(75% were all wrong, 25% were all right)" in message
    inverted = of("frac_reward_zero_std", [1.0] * 8)
    assert set(run(inverted)) == {"no_signal"} and run(of("frac_reward_zero_std", [0.5] * 12)) == {}


@pytest.mark.parametrize(
    "key",
    [
        "env/all/frac_reward_failed", "env/all/frac_verifier_failed", "test/frac_grader_failed",
        "own/frac_reward_failed",
    ],
)  # fmt: skip
def test_answers_that_cannot_be_judged_raise_judge_failed(key):
    bound = {"judge_failed": {"raises": 0.1}}
    evidence = run(of(key, [0.0, 0.0625, 0.875]), given=bound)["judge_failed"]
    assert (evidence.key, evidence.step, evidence.value, evidence.bound) == (key, 2, 0.875, 0.1)
    assert "88% of the answers could not be judged at step 2" in evidence.message
    assert run(of(key, [0.0625] * 12), given=bound) == {}
    given = {"judge_failed": {"above": 0.9, "raises": 0.9}}
    assert run(of(key, [0.875]), given=given) == {}


def test_one_raising_reward_function_raises_judge_failed():
    evidence = run(of("env/all/frac_reward_failed", [0.0, 1 / 256]))["judge_failed"]
    assert (evidence.step, evidence.bound) == (1, 0.0)
    assert "0.39% of the answers could not be judged" in evidence.message
    assert run(of("env/all/frac_verifier_failed", [1 / 256] * 12)) == {}


def test_a_metric_without_progress_raises_plateau():
    draw = random.Random(0)
    level = [draw.gauss(0.3, 0.05) for _ in range(200)]
    evidence = run(of(REWARD, level))["plateau"]
    assert (evidence.key, evidence.bound) == (REWARD, 60.0)
    assert "has not improved for 60 steps" in evidence.message
    slow = [0.2 + step / 1000 + draw.gauss(0, 0.05) for step in range(500)]
    assert "plateau" not in run(of(REWARD, slow))
    assert "plateau" not in run(of(REWARD, [0.95] * 200))  # solved
    assert "plateau" not in run(of(REWARD, level), given={"plateau": {"steps": 150}})
    stuck = [draw.gauss(2.3, 0.05) for _ in range(200)]
    assert "plateau" in run(of(LOSS, stuck))
    few: dict[str, Any] = {"plateau": {"steps": 5}}
    assert "plateau" not in run(of(LOSS, stuck[:9]), given=few)  # there is no mean of ten yet
    fallen = [3.0, 2.8, *(draw.gauss(2.3, 0.05) for _ in range(200))]
    assert "plateau" not in run(of(LOSS, fallen))  # most training ends like this
    rl = [{REWARD: 0.2 + step / 300, "loss": value} for step, value in enumerate(stuck)]
    assert "plateau" not in run(rl)


def test_longer_answers_without_more_reward_raise_length():
    grown = [4.0] * 10 + [6.0, 9.0, 12.0, 14.0, 16.0, 18.0, 20.0]
    evidence = run(both(length=grown, reward=[0.3] * 17))["length"]
    assert evidence.bound == 12 and "and the reward is no better" in evidence.message
    # The reward rises as well.
    assert run(both(length=grown, reward=[0.1 + n / 20 for n in range(17)])) == {}
    assert run(both(length=[4.0, 6.0, 5.0, 8.0, 6.0] * 4)) == {}
    unrewarded = run(both(length=grown))
    assert set(unrewarded) == {"length"} and "reward" not in unrewarded["length"].message


def test_many_truncated_answers_raise_truncation():
    rows = [{REWARD: 0.3}] * 12
    assert set(run(rows, {"truncated": [0.9] * 12})) == {"truncation"}
    assert run(rows, {"truncated": [0.9, 0.5, 0.3, 0.2] + [0.1] * 8}) == {}
    assert set(run(of("completions/clipped_ratio", [0.8] * 8))) == {"truncation"}


def test_rollout_summaries_fill_in_missing_metrics():
    def line(group: int, reward: float, **metrics: float) -> bytes:
        turn = {"ac_len": 6, "metrics": metrics}
        row = {"group_idx": group, "total_reward": reward, "steps": [turn]}
        return json.dumps(row).encode() + b"\n"

    cut = {"stop/max_tokens": 1.0}
    data = line(0, 1.0) + line(0, 1.0) + line(1, 0.0, **cut) + line(1, 0.5)
    summary = summarise(data)
    shares = {"mixed": 0.5, "good": 0.5, "bad": 0.0, "truncated": 0.25}
    assert summary == {"reward": 0.625, "length": 6} | shares
    # A group that may have been cut in two is ignored.
    assert summarise(data + line(2, 0.0) + b'{"group_idx": 2, "total_rew')["mixed"] == 0.5
    assert summarise(b"") == {}
    assert summarise(
        b'{"steps": 3}\n{"steps": [{"metrics": []}, 4], "group_idx": null}\n[1]\n'
    ) == {"truncated": 0.0}
    rows = [{"other": 1.0}] * 8
    assert set(run(rows, {"mixed": [0.0] * 8, "good": [0.0] * 8})) == {"no_signal"}


VITAL = Vitals(quiet=1.0, longest=2.0, lease=60.0, is_command=False)


def vital(given: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Evidence]:
    history = History()
    history.add({"step": 7})
    history.vitals = VITAL._replace(**changes)
    return judge_clock(history, resolve(given), no_failure)


def test_a_run_without_steps_raises_stalled():
    assert vital() == {}
    evidence = vital(quiet=31.0)["stalled"]
    assert (evidence.step, evidence.value, evidence.bound) == (7, 31.0, 30.0)
    assert vital(quiet=31.0, longest=20.0) == {}  # its steps are always slow
    assert set(vital(quiet=201.0, longest=20.0)) == {"stalled"}
    assert vital(quiet=500.0, paused="rate_limit since 12:00") == {}
    assert vital(quiet=150.0, beat_quiet=100.0) == {}  # another rule: the worker is silent


def test_stalled_before_the_first_step():
    assert vital(quiet=100.0, longest=None, to_first_step=4.0) != {}
    assert vital(quiet=100.0, longest=None, to_first_step=60.0) == {}
    assert vital(quiet=1799.0, longest=None) == {}
    assert set(vital(quiet=1801.0, longest=None)) == {"stalled"}
    assert vital(quiet=1e6, longest=None, is_command=True) == {}  # commands may write no metrics


def test_a_long_pause_raises_paused():
    assert vital(paused="capacity since 12:00", paused_s=3599.0) == {}
    assert set(vital(paused="capacity since 12:00", paused_s=3601.0)) == {"paused"}
    assert vital(given={"paused": None}, paused="quota", paused_s=1e6) == {}


def test_a_missing_heartbeat_raises_heartbeat():
    assert vital(beat_quiet=179.0) == {} and set(vital(beat_quiet=181.0)) == {"heartbeat"}
    assert vital(beat_quiet=181.0, lease=600.0) == {}


@pytest.mark.parametrize(
    ("line", "raised"),
    [
        ("error: the service at http://127.0.0.1:1 no longer answers (timed out)", True),
        ("tinker.APIConnectionError: Connection error.", True),
        ("httpx.ConnectError: [Errno -3] Temporary failure in name resolution", True),
        ("tinker.InternalServerError: 503 Service Unavailable", True),
        ("tinker.InternalServerError: Error code: 503 - {'detail': 'no'}", True),
        ("tinker.APITimeoutError: Request timed out.", True),
        ("tinker.InternalServerError: Error code: 500 - {'detail': 'bug'}", False),
        ("RuntimeError: the toy was told to fail", False),
        ("step 503 is bad", False),
        ("", False),
    ],
)
def test_a_service_error_in_the_log_raises_service(line, raised):
    assert set(vital(failed=Failed("error", line))) == ({"service"} if raised else set())


def test_an_outcome_that_blames_the_engine_is_evidence_whatever_its_words():
    evidence = vital(failed=Failed("service", "the engine at http://h:1 has moved"))["service"]
    assert evidence.message == "the run has failed: the engine at http://h:1 has moved"


def test_low_disk_and_memory_raise_alarms():
    assert vital(disk_free=2e9, memory_free=2e9, memory_total=16e9) == {}
    assert set(vital(disk_free=0.5e9)) == {"disk"}
    assert set(vital(memory_free=0.4e9, memory_total=16e9)) == {"memory"}
    assert vital(memory_free=0.0, memory_total=0.0) == {}
    assert set(vital(given={"disk": {"below": 5}}, disk_free=4e9)) == {"disk"}


def test_a_rule_that_fails_does_not_silence_the_others():
    history, failed = History(), list[str]()
    history.add({"step": 0, LOSS: 1.0, "x": math.nan})
    limits = resolve() | {"divergence": {}}
    raised = dict[str, Evidence]()
    for _ in range(8):
        history.add({"step": 1, LOSS: 1.0, "x": math.nan})
        raised = judge(history, limits, lambda rule, _: failed.append(rule))
    assert "nan" in raised
    assert set(failed) == {"divergence"}


def test_rules_thresholds_and_advice_belong_together():
    assert {rule.name for rule in ROW_RULES} | set(CLOCK_RULES) == set(RULES)
    for rule in RULES.values():
        for threshold in rule.thresholds.values():
            assert threshold.least <= threshold.default <= threshold.most


def test_thresholds_in_force():
    thresholds = resolve({"kl": {"above": 2, "newer": 3}, "spike": None, "newer": {"x": 1}})
    assert thresholds["kl"] == {"above": 2.0, "steps": 3.0} and "spike" not in thresholds
    assert "newer" not in thresholds
    assert set(resolve()) == set(RULES)


@pytest.mark.parametrize(("rule", "key"), [("length", LENGTH), ("collapse", REWARD)])
def test_more_steps_than_two_stretches_take_count_as_the_most(rule, key):
    """As in plans recorded when more steps were allowed."""
    assert resolve({rule: {"steps": 50}})[rule]["steps"] == WINDOW // 2
    good, bad = (4.0, 400.0) if rule == "length" else (1.0, 0.0)
    rows = [{key: good if step < 60 else bad} for step in range(120)]
    assert rule in run(rows, given={rule: {"steps": 50}})


def test_metric_keys_get_roles_by_name():
    assert role_of("loss", ["lr", "train/loss", "test/loss"]) == "train/loss"
    assert role_of("loss", ["test/nll", "eval_loss"]) is None
    assert role_of("loss", ["actor/total_loss"]) == "actor/total_loss"
    assert role_of("loss", ["test/bpb", "train_mean_bpb"]) == "train_mean_bpb"  # bits per byte
    assert role_of("kl", ["optim/kl_sample_train_v1", "optim/kl_sample_train_v2"]) == (
        "optim/kl_sample_train_v2"
    )
    assert role_of("reward", ["test/reward", "train/mean_reward"]) == "train/mean_reward"
    assert role_of("reward", ["chosen_reward", "rejected_reward"]) is None  # they may both fall
    assert role_of("entropy", ["actor/entropy", "entropy_coef"]) == "actor/entropy"
    for key in ("train/kl_coef", "kl/coefficient", "kl/target", "kl_ctl", "kl/beta", "kl_penalty"):
        assert role_of("kl", [key]) is None
    assert role_of("kl", ["a/kl_coef", "longer/name/of/kl"]) == "longer/name/of/kl"
    assert role_of("entropy", ["entropy_coef", "target/entropy"]) is None
    assert role_of("length", ["completions/mean_length"]) == "completions/mean_length"


@pytest.mark.parametrize(
    ("rule", "key", "values", "given", "step"),
    [
        ("length", LENGTH, (4.0, 40.0), {}, WINDOW + 14),  # half of the 30
        ("collapse", REWARD, (0.9, 0.0), {"lost": 0.65}, WINDOW + 19),  # 20 of the 30
    ],
)
def test_the_history_suffices_for_every_threshold(rule, key, values, given, step):
    """Rules that compare two stretches still work with the most steps that they accept."""
    most = RULES[rule].thresholds["steps"].most
    rows = of(key, [*([values[0]] * WINDOW), *([values[1]] * WINDOW)])
    assert run(rows, given={rule: {"steps": most, **given}})[rule].step == step
    assert most == WINDOW // 2 == 30


def test_a_collapse_threshold_of_1_means_all_reward_lost():
    rows = of(REWARD, [*([0.5] * 20), *([0.0] * 20)])
    assert set(run(rows, given={"collapse": {"lost": 1}})) == {"collapse"}


def test_history_stays_small():
    history = History()
    for step in range(500):
        history.add({"step": step, LOSS: 1.0})
    assert len(history.series["loss"].values) == 60 and history.series["loss"].count == 500


def test_median_and_deviation_are_robust():
    assert median([3, 1, 2]) == 2 and median([4, 1, 2, 3]) == 2.5 and math.isnan(median([]))
    assert deviation([1, 1, 1, 100]) == 0 and deviation([1, 2, 3, 4, 5]) == pytest.approx(1.4826)


def test_the_documentation_has_every_rule_and_default():
    text = (Path(__file__).parents[2] / "docs" / "alarms.md").read_text()
    for name, rule in RULES.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        for key, threshold in rule.thresholds.items():
            value = threshold.default
            shown = f"{value:g}"
            if threshold.kind == "duration":
                unit = 3600 if value >= 3600 else 60 if value >= 60 else 1
                shown = f"{value / unit:g} " + {3600: "h", 60: "min", 1: "s"}[unit]
            assert re.search(rf"\*{key}\* \(?{re.escape(shown)}\b", row), (name, key)
        assert text.count(f"| `{name}` |") == 2  # the second row says what to do
