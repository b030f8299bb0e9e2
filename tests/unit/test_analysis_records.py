"""What the report says of odd, missing and huge records."""

from pathlib import Path

import numpy as np
import pytest
from support import written

from sweeper import analysis
from sweeper.analysis.comparison.cells import rank
from sweeper.analysis.findings.finding import Finding
from sweeper.analysis.findings.study import find
from sweeper.analysis.findings.verdict import decide
from sweeper.analysis.page.verdict_line import verdict_line
from sweeper.analysis.pairwise import versus
from sweeper.analysis.reading.checkpoints import choose_checkpoint
from sweeper.analysis.reading.frames import load
from sweeper.results.registry import Registry


def test_the_final_checkpoint_goes_before_a_later_record(tmp_path):
    sweep = written.Written(tmp_path)
    final = written.checkpoint("a")[0]
    late = {"name": "extra", "batch": 81, "sampler_path": "tinker://extra", "ttl_seconds": 10**400}
    for seed, records in enumerate(([final, late], [{**final, "final": False}, late])):
        sweep.run({}, seed, [{"step": 80, "test/nll": 1.0}], checkpoints=records)
    sweep.save()
    runs = load(Registry(str(tmp_path)), "demo", None, None).runs
    chosen = [choose_checkpoint(run, "last") for run in runs]
    assert [checkpoint.name for checkpoint in chosen if checkpoint] == ["final", "extra"]
    assert chosen[1].expires is None


def _ending(values: list[object]) -> list[dict[str, object]]:
    return [
        {"step": n, "other": 1, **({} if value is ... else {"test/nll": value})}
        for n, value in enumerate(values)
    ]


@pytest.mark.parametrize("end", [[None], [..., ..., ...], ["oops"]])
def test_a_cell_whose_metric_is_missing_at_the_end_is_not_named_best_without_a_caution(
    tmp_path, end
):
    """Some programs write null, or nothing, for NaN: the run may have diverged."""
    sweep = written.Written(tmp_path, "demo", {"lr": [0, 1]})
    for seed in range(3):
        sweep.run({"lr": 0}, seed, _ending([3.0, 2.5, 2.0 + 0.01 * seed, 2.0 + 0.01 * seed]))
        sweep.run({"lr": 1}, seed, _ending([3.0, 2.0, 1.0 + 0.01 * seed, *end]))
    sweep.save()
    registry = Registry(str(tmp_path))
    data = load(registry, "demo", None, None)
    ranking = rank(data)
    findings = find(data, ranking)
    verdict = decide(data, ranking, findings)
    assert verdict.kind == "ahead" and "may have diverged" in verdict.label
    [finding] = [f for f in findings if f.kind == "missing_end"]
    assert finding.cells == ("lr=1",) and finding in verdict.believe
    assert "may have diverged" in (verdict_line(registry, "demo") or "")
    text = versus(registry, "demo/lr=0", "demo/lr=1").text
    assert "! 3 runs of lr=1 in B may have diverged" in text
    registry.records("demo")
    assert sum("the run may have diverged since" in line for line in registry.problems) == 3
    assert not registry.problems.unread


def _findings_about(root: Path, *files: str) -> tuple[list[Finding], Registry]:
    """Return the findings about a sweep with one run for each text of a metrics.jsonl."""
    sweep = written.Written(root, "demo", {"lr": [0, 1]})
    for lr, text in enumerate(files):
        sweep.run({"lr": lr}, 0, text)
    sweep.save()
    registry = Registry(str(root))
    data = load(registry, "demo", None, None)
    registry.metrics(registry.runs("demo"))
    return find(data, rank(data)), registry


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("".join(f'{{"step": {s}, "test/nll": 1}}\n' for s in (20, 20, 40, 20, 40, 60)),
         "steps go back 1 time (the first from 40 to 20)"),
        ('{"step": "3", "test/nll": 1}\n' * 2,
         '2 rows have steps that are not numbers (the first: "3")'),
        ("epoch 1 loss 0.5\n" * 3, "the first: epoch 1 loss 0.5"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        ('{"step": 1, "test/nll": 1}\nx\n', "1 malformed line skipped"),
    ],
)  # fmt: skip
def test_odd_metrics_files_are_reported(tmp_path, text, words):
    plain = '{"step": 1, "test/nll": 2}\n'
    findings, registry = _findings_about(tmp_path, text, plain)
    [finding] = [f for f in findings if f.kind in ("odd_records", "unreadable")]
    assert words in finding.text and "lr=1" not in finding.text
    assert any(words in line for line in registry.problems)


@pytest.mark.parametrize(
    "text",
    [
        # A concurrent evaluation writes late; rows of a step may be written in parts.
        '{"step": 1, "loss": 1}\n{"step": 2, "loss": 1}\n{"step": 1, "test/nll": 1}\n',
        '{"step": 1, "loss": 1}\n{"step": 1, "test/nll": 1}\n',
    ],
)
def test_rows_that_come_late_are_not_odd(tmp_path, text):
    findings, registry = _findings_about(tmp_path, text, text)
    assert "odd_records" not in {f.kind for f in findings} and not registry.problems


def test_a_resumed_attempt_may_begin_before_its_copies_end(tmp_path):
    rows = [{"step": s, "test/nll": 1.0} for s in (0, 1, 2, 3)]
    sweep = written.Written(tmp_path, "demo")
    sweep.run({}, 0, rows, "preempted", cell="")
    sweep.run({}, 0, [*rows, *rows[2:], {"step": 4, "test/nll": 1.0}], cell="", attempt=2)
    sweep.save()
    registry = Registry(str(tmp_path))
    assert len(registry.metrics("demo")) == 5 and not registry.problems


def test_metrics_that_are_not_numbers_are_described(tmp_path):
    text = '{"step": 1, "eval": {"nll": 1.0, "acc": 0.5}, "test/nll": "0.5", "list": [1]}\n'
    findings, _ = _findings_about(tmp_path, text, text)
    [finding] = [f for f in findings if f.kind == "metric_missing"]
    assert 'It is "0.5".' in finding.text
    assert "eval (an object with nll, acc) and list (a list)" in finding.text


@pytest.mark.parametrize("at", ["auto", "last", "best"])
@pytest.mark.parametrize(
    "values",
    [
        lambda rng, lr: np.exp(500 + 30 * rng.normal(size=12)) if lr else 5 + rng.normal(size=12),
        lambda rng, lr: 1e300 * (1 + 0.1 * lr + 0.01 * rng.normal(size=12)),
        lambda rng, lr: rng.choice([1.79e308, -1.79e308, 1e308], 12),
    ],
)
def test_huge_values_are_analyzed_and_compared(tmp_path, at, values):
    """For example the perplexity of a diverged run, whose square overflows."""
    rng = np.random.default_rng(1)
    sweep = written.Written(tmp_path, "demo", {"lr": [0, 1, 2]})
    for lr in (0, 1, 2):
        for seed in range(3):
            rows = [{"step": n, "test/nll": float(v)} for n, v in enumerate(values(rng, lr))]
            sweep.run({"lr": lr}, seed, rows)
    sweep.save()
    report = analysis.analyze(str(tmp_path), "demo", at=at, pictures=False)
    assert report.verdict
    registry = Registry(str(tmp_path))
    assert versus(registry, "demo/lr=0", "demo/lr=1", at=at).text
    assert analysis.compare(registry.runs("demo")).best is not None
