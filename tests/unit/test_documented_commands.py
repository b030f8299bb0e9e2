"""The commands that README.md and docs/*.md show can be typed as they stand."""

import argparse
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.commands import parser
from sweeper.engine import __main__ as engine
from sweeper.planner.plan import plan
from sweeper.results.registry import Registry
from sweeper.results.selectors import named, pick
from sweeper.results.sweeps import Sweep
from sweeper.store.documents import encode

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```\w*\n(.*?)^```\n|((?:^    [^\n]*\n)+)", re.MULTILINE | re.DOTALL)
TYPED = re.compile(r"^ *(?:\$ )?sweeper (.*)", re.MULTILINE)
INLINE = re.compile(r"(?<!`)`(?:[^`]*\$\()?sweeper ([^`]+?)(?:\)\"?)?`(?!`)")
LACKS = re.compile(r"arguments are required: (.*)")

Parse = Callable[[str], argparse.Namespace]


def commands_of(text: str) -> list[str]:
    """Return all commands of a page, without the program's name, pipes and redirections."""
    blocks = "".join(match[1] or match[2] for match in BLOCK.finditer(text))
    typed = TYPED.findall(blocks.replace("\\\n", " "))
    inline = [" ".join(code.split()) for code in INLINE.findall(BLOCK.sub("\n", text))]
    return [re.split(r" [>|] ", command)[0] for command in (*typed, *inline)]


COMMANDS = sorted({(page.name, line) for page in PAGES for line in commands_of(page.read_text())})


def words_of(command: str) -> list[str]:
    """Return its words, with optional ones (`[SWEEP]`) and without the comment."""
    return [re.sub(r"^\[(.+)\]$", r"\1", word) for word in shlex.split(command, comments=True)]


@pytest.fixture
def parse(capsys: pytest.CaptureFixture[str]) -> Parse:
    """Return a parser of commands; it makes up the missing arguments of a bare verb."""

    def parsed(command: str) -> argparse.Namespace:
        words = words_of(command)
        while True:
            try:
                if words[0] == "engine":
                    return engine.parser().parse_args(words[1:])
                return parser.parse(words)
            except SystemExit as ended:
                stderr = capsys.readouterr().err
                if ended.code == 0:  # --help
                    return argparse.Namespace()
                lacks = LACKS.search(stderr)
                assert lacks, f"sweeper {command}: {stderr}"
                for name in map(str.strip, lacks[1].split(",")):
                    words += [name, "NAME"] if name.startswith("-") else ["NAME"]

    return parsed


PAGE = r"""`sweeper a b
c` x `eval "$(sweeper d)"`
```console
$ sweeper e \
  f | g
said
```

    sweeper h  # i

sweeper j
"""


def test_the_pages_have_commands():
    """In the text, in blocks with and without a prompt, and in indented ones."""
    assert [words_of(command) for command in commands_of(PAGE)] == [
        ["e", "f"], ["h"], ["a", "b", "c"], ["d"],
    ]  # fmt: skip
    assert len(COMMANDS) > 120
    assert {page for page, _ in COMMANDS} > {"README.md", "grid.md", "engine.md", "reliability.md"}


@pytest.mark.parametrize("page", sorted({page for page, _ in COMMANDS}))
def test_the_commands_of_a_page_are_those_that_the_program_takes(page, parse):
    for place, command in COMMANDS:
        if place == page:
            parse(command)  # fails with the program's message


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Record the quickstart's plan."""
    root = tmp_path_factory.mktemp("root")
    (root / "quickstart").mkdir()
    planned = plan(ROOT / "grids" / "quickstart.yaml", validate=False)
    (root / "quickstart" / "sweep.json").write_bytes(encode(planned.document()))
    return Registry(str(root)).sweep("quickstart")


def test_documented_selectors_fit_the_quickstart(quickstart, parse):
    chosen: list[str] = []
    for page, command in COMMANDS:
        arguments = parse(command)
        for word in words_of(command):
            if re.match("quickstart(/|$)", word):
                assert named(quickstart.runs, word), (page, command)
        if getattr(arguments, "sweep", None) == "quickstart":
            wanted = getattr(arguments, "runs", None) or ()
            assert pick(quickstart.runs, wanted, None, getattr(arguments, "where", None))
            chosen += [command] * bool(wanted)
    assert any(command.startswith("cancel quickstart ") for command in chosen)
