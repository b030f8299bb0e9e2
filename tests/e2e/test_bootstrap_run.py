"""What a recipe gets when bootstrap.py runs it: the values that were checked, unchanged."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from harness.real import until

from sweeper.planner.plan import plan
from sweeper.recipe import bootstrap
from sweeper.sweep.process import began

pytestmark = pytest.mark.e2e

PATH = os.path.abspath(bootstrap.__file__)

RECIPE = """
import json, sys, chz

@chz.chz
class Config:
    log_path: str
    text: str = ""
    words: list[str] = chz.field(default_factory=list)
    anything: object = None
    number: float = 0.0
    nested: dict[str, float] = chz.field(default_factory=dict)
    seed: int = 0

def main(config: Config) -> None:
    with open(config.log_path, "w") as file:
        json.dump(chz.asdict(config), file)

if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""

HOSTILE = [
    "$(touch pwn)",
    "`touch pwn`",
    "; touch pwn;",
    "a\nb\r\n\tc",
    "--flag",
    "--help",
    "-c",
    "'\"\\",
    "key=value",
    "a=b=c",
    "@file",
    "é\u2028☃\U0001f600",
    " leading and trailing ",
    "None",
    "[1]",
    "lambda: 1",
    "os:system",
    "x" * 1_000_000,
]


def run(recipe, config, tmp_path, **arguments):
    child = tmp_path / "child.json"
    child.write_text(json.dumps({"schema": 1, "recipe": recipe.document(), "config": config}))
    return subprocess.run(
        [recipe.python, PATH, "run", str(child)],
        cwd=recipe.cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        **arguments,
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Change to a folder with a recipe and return it."""
    (tmp_path / "mine.py").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("reference", ["mine", "mine.py"])
def test_what_was_checked_is_what_the_run_gets(folder, reference):
    grid = {
        "name": "g",
        "recipe": reference,
        "base": {"words": ["a,b", ""], "nested": {"a": 1, "b": 0.5}, "number": 1e-7},
        "grid": {"text": HOSTILE, "anything": [None, "1", [1, "x"]]},
    }
    resolved = plan(grid)
    assert len(resolved.runs) == 3 * len(HOSTILE)
    out = folder / "out.json"
    for planned in resolved.runs[::2] if reference == "mine" else resolved.runs[1::9]:
        done = run(resolved.recipe, {**planned.config, "log_path": str(out)}, folder)
        assert (done.returncode, done.stderr) == (0, "")
        got = json.loads(out.read_text())
        assert got["text"] == planned.config["text"]
        assert got["anything"] == planned.config["anything"]
        assert got["words"] == ["a,b", ""]
        assert (got["nested"], got["number"]) == ({"a": 1, "b": 0.5}, 1e-7)
    assert not (folder / "pwn").exists()


def test_our_recipe_runs_in_a_folder_with_recipes_of_its_own(folder):
    (folder / "recipes").mkdir()
    (folder / "recipes" / "__init__.py").write_text("raise RuntimeError('not this one')")
    (folder / "sweeper.py").write_text("raise RuntimeError('not this one')")
    (folder / "json.py").write_text("raise RuntimeError('not this one')")
    planned = plan({"name": "g", "recipe": "sft"})
    config = {"log_path": str(folder / "log"), "task": "no such task"}
    done = run(planned.recipe, config, folder)
    assert done.returncode != 0
    assert "not this one" not in done.stderr
    assert "no such task" in done.stderr


@pytest.mark.parametrize("kind", ["module", "file"])
def test_it_is_like_python_m(folder, kind):
    (folder / "errors.py").write_text("mine = 'errors of mine'")
    (folder / "like.py").write_text(
        textwrap.dedent("""
        import sys, multiprocessing, errors
        import chz

        @chz.chz
        class Config:
            log_path: str

        def double(x):
            return 2 * x

        if __name__ == "__main__":
            assert sys.modules["__main__"].double is double
            own = sys.argv[0].endswith("like.py")
            print(errors.mine, own, sys.argv[1:], repr(sys.stdin.read()))
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
            sys.exit(7)
        """)
    )
    planned = plan({"name": "g", "recipe": "like" if kind == "module" else "./like.py"})
    done = run(planned.recipe, {"log_path": "x y"}, folder)
    assert done.stdout == "errors of mine True ['log_path=x y'] ''\n[2, 4]\n"
    assert (done.returncode, done.stderr) == (7, "")


def test_a_traceback_names_the_recipes_own_lines(folder):
    (folder / "fails.py").write_text(RECIPE + "    raise ValueError('as it should')\n")
    planned = plan({"name": "g", "recipe": "fails"})
    done = run(planned.recipe, {"log_path": str(folder / "o")}, folder)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: as it should")
    assert f'File "{folder}/fails.py", line' in done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child")
def test_it_dies_with_the_process_that_started_it(folder):
    (folder / "waits.py").write_text(
        RECIPE.replace(
            "chz.nested_entrypoint(main)",
            "import time; main(chz.entrypoint(Config)); time.sleep(600)",
        )
    )
    planned = plan({"name": "g", "recipe": "waits"})
    out = folder / "out.json"
    child = folder / "child.json"
    document = {"recipe": planned.recipe.document(), "config": {"log_path": str(out)}}
    child.write_text(json.dumps(document))
    starter = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", starter, sys.executable, PATH, "run", str(child)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        pid = int(parent.stdout.readline())
        until(out.exists)
        parent.send_signal(signal.SIGKILL)
    until(lambda: not began(pid))


BUILDS = """
import asyncio, chz, sys

@chz.chz
class Data:
    size: int = 8

@chz.chz
class Config:
    log_path: str
    name: str
    rate: float
    data: Data
    more: Data | None = None

def blueprint(name: str = "a", wide: bool = False):
    data = Data(size=16 if wide else 8)
    return chz.Blueprint(Config).apply({"name": name, "rate": 0.5, "data": data})

def config(log_path: str = "nowhere", name: str = "b"):
    return Config(log_path=log_path, name=name, rate=0.25, data=Data())

async def main(config):
    answer = input(f"{config.log_path} already exists. What now? [delete, resume, exit]: ")
    await asyncio.sleep(0)
    sizes = [held.size for held in (config.data, config.more) if held is not None]
    print(answer, config.log_path, config.name, config.rate, *sizes)
    input("Sure? ")
"""


@pytest.mark.parametrize(
    ("reference", "given", "made"),
    [
        ("builds:blueprint", {}, "a 0.5 8"),
        ("builds:blueprint", {"name": "x", "wide": True}, "x 0.5 16"),
        ("builds.py:blueprint", {"wide": True, "data.size": 3, "rate": 2.0}, "a 2.0 3"),
        ("builds:config", {"name": "y", "data.size": 3}, "y 0.25 3"),
        ("builds:blueprint", {"data.size": 3, "more": {"size": 5}}, "a 0.5 3 5"),
        ("builds:config", {"name": "y", "more": {"size": 5}}, "y 0.25 8 5"),
    ],
)
def test_the_config_that_a_function_returns_is_run_by_its_main(folder, reference, given, made):
    """The question whether to resume is answered. Any other question fails."""
    (folder / "builds.py").write_text(BUILDS)
    planned = plan({"name": "g", "recipe": reference, "base": given})
    done = run(planned.recipe, {**planned.runs[0].config, "log_path": "log"}, folder)
    line = "log already exists. What now? [delete, resume, exit]: resume (answered by sweeper)"
    assert done.stdout.splitlines() == [line, f"resume log {made}"]
    assert done.stderr.splitlines()[-1] == "EOFError: a run cannot ask a user: Sure? "


def test_a_main_that_is_elsewhere_is_that_of_the_config_s_module(folder):
    (folder / "builds.py").write_text(BUILDS)
    (folder / "mine.py").write_text("from builds import blueprint as base\ndef build(name: str):\n"
                                    "    return base(name, wide=True)\n")  # fmt: skip
    planned = plan({"name": "g", "recipe": "mine:build", "base": {"name": "z"}})
    done = run(planned.recipe, {**planned.runs[0].config, "log_path": "log"}, folder)
    assert done.stdout.splitlines()[-1] == "resume log z 0.5 16"
