"""The Python API in notebooks: listed names, tables, plots, waiting."""

import asyncio
import html.parser
from pathlib import Path
from typing import Any

import pytest
from support import written

import sweeper
from sweeper.errors import UsageError
from sweeper.launcher.launching import Launched
from sweeper.results.registry import Registry

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def root(tmp_path: Path, home: Path) -> str:
    made = written.Written(tmp_path / "root", "s", {"word": [HOSTILE, 2]})
    for word in (HOSTILE, 2):
        rows = [{"step": n, "test/nll": 3.0 - n, "text": "t"} for n in range(3)]
        made.run({"word": word}, 0, rows, log="one\ntwo\nthree\n")
    made.save()
    return str(tmp_path / "root")


class Tags(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)


def test_dir_lists_all_public_names() -> None:
    assert {"status", "cancel", "retry", "wait", "logs", "note", "plan", "launch", "Registry"} <= {
        *dir(sweeper)
    }
    assert {*sweeper.__all__} <= {*dir(sweeper)}


def test_tables_of_notebooks_contain_no_scripts(root: str) -> None:
    from sweeper.analysis.findings.verdict import Verdict

    registry = Registry(root)
    run = registry.run("s/word=2")
    verdict = Verdict("none", "no winner", HOSTILE, "m", None, None, (), None, (), None)
    many = sweeper.plan({"recipe": "sft", "name": "p", "grid": {"max_steps": [*range(1, 41)]}})
    for shown in (registry, run, registry.sweep("s").plan, sweeper.status("s", root=root), verdict):
        tags = Tags(shown._repr_html_()).seen
        assert "table" in tags or "pre" in tags
        assert "script" not in tags
    assert "and 10 more" in many._repr_html_()


def test_plot_draws_recorded_metrics(root: str) -> None:
    run = Registry(root).run("s/word=2")
    (curve,) = run.plot("test/nll").data
    assert (list(curve.x), list(curve.y)) == ([0, 1, 2], [3.0, 2.0, 1.0])
    assert run.plot().data[0].name == "test/nll"
    with pytest.raises(UsageError, match="has not recorded 'nll'; it has test/nll"):
        run.plot("nll")


def test_logs_returns_the_last_lines(root: str) -> None:
    assert sweeper.logs("s", ["word=2"], root=root, lines=2) == {"word=2,seed=0": ["two", "three"]}
    with pytest.raises(UsageError, match="a number from 1"):
        sweeper.logs("s", root=root, lines=0)


def test_waiting_does_not_block_the_event_loop(root: str) -> None:
    async def both() -> tuple[Any, Any]:
        return await asyncio.gather(
            sweeper.wait_async("s", root=root), _awaited(Launched("s", root, None))
        )

    assert [status.finished for status in asyncio.run(both())] == [True, True]


async def _awaited(launched: Launched) -> Any:
    return await launched
