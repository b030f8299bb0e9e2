"""CONTRIBUTING.md, "How to add": its files and names exist, and its lines work where they are to
be pasted."""

import importlib
import re
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import written

from sweeper.alarms.history import History
from sweeper.analysis.findings.study import study
from sweeper.analysis.page.html import render
from sweeper.analysis.reading.frames import load
from sweeper.cli import main
from sweeper.results.registry import Registry
from sweeper.terminal import duration

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text().partition("## How to add\n")[2].partition("\n## ")[0]
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
TOPS = [
    ROOT,
    *(ROOT / top for top in ("sweeper", "analysis", "analysis/figures", "sweeper/backends")),
]


def _pasted() -> dict[str, str]:
    """Return the lines to paste by the comment above them, which names a file and a place."""
    parts = [re.split(r"^# (.*)\n", block, flags=re.M)[1:] for block in BLOCK.findall(TEXT)]
    return {
        where: lines for part in parts for where, lines in zip(part[::2], part[1::2], strict=True)
    }


PASTED = _pasted()


def _in_module(where: str) -> dict[str, Any]:
    """Return the names in the module of a comment, after its lines were executed there."""
    module = where.partition(".py")[0].replace("/", ".").replace("analysis.", "sweeper.analysis.")
    names = dict(vars(importlib.import_module(module)))
    exec(PASTED[where], names)  # noqa: S102 - lines of our documentation
    return names


def test_the_files_are_there() -> None:
    words = {*re.findall(r"`([\w./]+/[\w.]*|[\w/]+\.(?:py|md|j2))`", BLOCK.sub("", TEXT))}
    words |= {*re.findall(r"\b(docs/[\w-]+\.md)", TEXT)}
    made = {"commands/VERB.py", "options.py"}
    missing = {w for w in words - made if not any((top / w).exists() for top in TOPS)}
    assert missing == set() and len(words) > 30


def test_the_names_are_there() -> None:
    folders = ("sweeper", "analysis", "recipes", "tests")
    files = (path for top in folders for path in (ROOT / top).rglob("*.py"))
    text = "".join(path.read_text() for path in files if path != Path(__file__))
    words = {*re.findall(r"`(_*[A-Za-z]\w+)(?:\(\w*\))?`", BLOCK.sub("", TEXT))}
    lacking = {word for word in words - {"team"} if not re.search(rf"\b{word}\b", text)}
    assert lacking == set() and len(words) > 40


@pytest.mark.parametrize(
    "where", [where for where in PASTED if where.endswith((", in Launch", ", in Options"))]
)
def test_a_declaration_is_valid_where_it_belongs(where: str) -> None:
    path, _, place = where.partition(", in ")
    assert f"\nclass {place}(NamedTuple):" in (ROOT / path).read_text()
    assert _in_module(where)["__annotations__"]


def test_the_use_of_a_field_is_valid_where_it_belongs() -> None:
    where = next(where for where in PASTED if "_begin_recipe" in where)
    text = (
        (ROOT / "sweeper/worker/main.py").read_text().partition("def _begin_recipe(self, job:")[2]
    )
    body = text.partition("\n    def ")[0]
    assert "self._child = " in body and body.rstrip().endswith("return guard")
    assert "import os\n" in (ROOT / "sweeper/worker/main.py").read_text()
    compile(PASTED[where], where, "exec")


def test_a_column_of_ls() -> None:
    line = PASTED["sweeper/commands/ls.py, in the list of _print_table"]
    names: dict[str, Any] = {"duration": duration}
    exec(PASTED["with the import"], names)  # noqa: S102
    ((header, cell),) = eval(f"[{line}]", names)  # noqa: S307
    assert header == "age" and cell(SimpleNamespace(last_event=None), {}) == "-"


def test_the_test_of_a_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWEEPER_ROOT", str(tmp_path))
    where = next(where for where in PASTED if where.startswith("tests/unit/test_commands.py"))
    names: dict[str, Any] = {"Path": Path, "written": written, "pytest": pytest, "main": main}
    exec(PASTED[where].replace('"age"', '"seed"'), names)  # noqa: S102 - no such column yet
    names["test_ls_prints_ages"](tmp_path, capsys)


def test_an_alarm() -> None:
    entry = PASTED["sweeper/common/alarm_thresholds.py, in RULES"]
    names = vars(importlib.import_module("sweeper.common.alarm_thresholds"))
    rule = eval(f"{{{entry}}}", dict(names))["constant"]  # noqa: S307
    thresholds = {name: limit.default for name, limit in rule.thresholds.items()}
    find = _in_module("sweeper/alarms/rules.py, before ROW_RULES")["_constant"]
    history = History()
    for step in range(20):
        history.add({"step": step, "train_mean_nll": 0.2})
    assert find(history, thresholds).message == "train_mean_nll has been 0.2 for 20 steps"
    history.add({"step": 20, "train_mean_nll": 0.1})
    assert find(history, thresholds) is None


def test_a_figure_of_the_report(tmp_path: Path) -> None:
    written.truth(tmp_path)
    studied = study(load(Registry(str(tmp_path)), "truth", None, None))
    names = _in_module("analysis/figures/cells.py")
    metric = studied.data.metric
    assert metric is not None
    lines = PASTED["analysis/figures/cells.py, in panels"].replace("yield ", "panel = ")
    exec(lines, names | (local := {"study": studied, "metric": metric}), local)  # noqa: S102
    panel: Any = local["panel"]
    assert panel.section == "cells" and panel.figure["data"][0]["meta"]["role"] == "point"
    assert f'aria-label="{panel.description}"' in render(studied, [panel])


def test_a_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = written.Written(tmp_path, "s", {"lr": [1]})
    sweep.run({"lr": 1}, 0, [{"step": 0, "test/nll": 1.0}])
    sweep.save()
    names: dict[str, Any] = {}
    exec(PASTED["sweeper/commands/idle.py"], names)  # noqa: S102
    parser = ArgumentParser()
    names["add_arguments"](parser)
    run: Callable[[Any], int] = names["run"]
    for options, shown in (([], "nothing for"), (["--json"], '"schema": 1')):
        assert run(parser.parse_args(["--root", str(tmp_path), *options])) == 0
        out = capsys.readouterr().out
        assert shown in out and "s" in out
