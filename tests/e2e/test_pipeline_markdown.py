"""A pipeline as a whole has a report in Markdown, as each of its stages has."""

import sys
from pathlib import Path

import pytest

from sweeper.cli import main

pytestmark = pytest.mark.e2e

TRAIN = (
    "import json, sys\n"
    "row = json.dumps({'step': 1, 'loss': float(sys.argv[1])})\n"
    "open(sys.argv[2] + '/metrics.jsonl', 'w').write(row)\n"
)
GRID = """name: pipe
launch: {backend: local}
stages:
  a:
    command: [python, train.py, "{x}", "{log_path}"]
    grid: {x: [1, 2]}
    metric: {name: loss, goal: minimize}
  b:
    from: {stage: a, take: each}
    command: [python, train.py, "{x}", "{log_path}"]
    base: {par: "${a.log_path}"}
    grid: {x: [3]}
    metric: {name: loss, goal: minimize}
""".replace("python", sys.executable)  # which need not be on the PATH by that name


def test_a_pipeline_has_a_report_in_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    Path("pipe.yaml").write_text(GRID)
    assert main(["launch", "pipe.yaml", "--wait"]) == 0
    assert main(["analyze", "pipe"]) == 0
    text = Path("sweeps/pipe/report/report.md").read_text()
    assert "[Report of a](a/report.md)" in text and Path("sweeps/pipe/report/a/report.md").exists()
    assert text.count(", then b ") == 2
