"""docs/grid.md: its examples are true, and it names every section and limit."""

import hashlib
import re
from pathlib import Path

import pytest

from sweeper.fields import nodes
from sweeper.grid import (
    arithmetic,
    blocks,
    declaration,
    extends,
    ranges,
    reading,
    references,
    sampling,
    seeds,
    stages,
)
from sweeper.grid.conditions import MAX_WHENS
from sweeper.planner.cells import MAX_PLAN
from sweeper.planner.plan import plan
from sweeper.planner.product import MAX_RUNS, MAX_WORK

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "grid.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```\n\n```console\n(.*?)```", TEXT, re.DOTALL)


def test_every_example_has_its_cells():
    assert len(EXAMPLES) == TEXT.count("```yaml") == TEXT.count("```console") == 11


@pytest.mark.parametrize(("text", "listed"), EXAMPLES)
def test_an_example_makes_the_cells_that_are_listed(text, listed, tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    (tmp_path / "grids").symlink_to(DOCS.parent / "grids")
    (tmp_path / "docs" / "example.yaml").write_text(text)
    monkeypatch.chdir(DOCS.parent)
    planned = plan(tmp_path / "docs" / "example.yaml", validate=False)
    assert list(dict.fromkeys(run.cell for run in planned.runs)) == listed.splitlines()
    assert [w for w in planned.warnings if "not validated" not in w] == []


def test_the_documented_id_is_computed():
    text, expected = re.findall(
        r'^    (\{"recipe".*\})    ->  ([0-9a-f]{12})$', TEXT, re.MULTILINE
    )[0]
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == expected
    grid = {"name": "v", "recipe": "sft", "base": {"lora_rank": 8.0, "learning_rate": 1e-4}}
    assert plan(grid, ["seeds=1"], validate=False).runs[0].id == expected


def test_every_section_is_named():
    table = TEXT.partition("## Sections")[2].partition("Cells are made")[0]
    assert set(re.findall(r"`(\w+)`", table)) >= set(declaration.SECTION.fields)


@pytest.mark.parametrize(
    "limit",
    [
        nodes.MAX_BYTES // 1024, nodes.MAX_NODES, nodes.MAX_DEPTH, nodes.MAX_DIGITS, MAX_RUNS,
        MAX_WORK, MAX_PLAN, reading.MAX_AXES, blocks.MAX_ENTRIES, sampling.MAX_SAMPLES,
        sampling.MAX_DRAWN, MAX_WHENS, seeds.MAX_SEEDS, ranges.MAX_VALUES, extends.MAX_EXTENDS,
        stages.MAX_STAGES, references.MAX_MADE, arithmetic.MAX_TEXT,
    ],
)  # fmt: skip
def test_every_limit_is_named(limit):
    assert re.search(rf"\b{limit:,}\b", TEXT.partition("## Limits")[2])
