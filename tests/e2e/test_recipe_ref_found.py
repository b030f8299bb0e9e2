"""From a reference to a recipe: its file, its class, and the message if there is none."""

import sys
import textwrap

import pytest
from harness.real import until

from sweeper.common.codec import read
from sweeper.errors import RecipeError
from sweeper.recipe.command_template import placeholders, render_command
from sweeper.recipe.reference import (
    FilledFields,
    RunProcess,
    find_python,
    inspect,
)
from sweeper.sweep.process import began
from sweeper.sweep.recipe import Recipe

pytestmark = pytest.mark.e2e


CONFIG = """
    import chz

    @chz.chz
    class {name}:
        log_path: str
        lr: float = chz.field(default=0.5, doc="step size")
        seed: int = 0
        rank: int
        tags: list[str] = chz.field(default_factory=list)

    if __name__ == "__main__":
        chz.entrypoint({name})
"""
GUARD = "\nif __name__ == '__main__': pass\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes a module below an empty current folder."""
    monkeypatch.chdir(tmp_path)

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(textwrap.dedent(text))

    return write


def resolve(source, **arguments):
    return inspect(source, [], **arguments)[0]


def error(source, **arguments):
    with pytest.raises(RecipeError) as caught:
        resolve(source, **arguments)
    return caught.value.problems[0]


def test_a_module_in_the_current_folder(write, tmp_path):
    write("pkg/train.py", CONFIG.format(name="Config"))
    resolved = resolve("pkg.train")
    assert (resolved.kind, resolved.module, resolved.config_class) == (
        "module",
        "pkg.train",
        "Config",
    )
    assert (resolved.python, resolved.cwd, resolved.on_path) == (
        sys.executable,
        str(tmp_path),
        True,
    )
    assert (resolved.log_path_field, resolved.seed_field, resolved.behavior_field) == (
        "log_path",
        "seed",
        False,
    )
    assert resolved.takes["lr"] == {"type": "float", "doc": "step size", "default": 0.5}
    assert resolved.takes["rank"] == {"type": "int", "doc": "", "required": True}
    assert resolved.takes["tags"] == {"type": "list[str]", "doc": "", "required": False}
    assert read(Recipe, {**resolved.document(), "newer": 1}, "x") == resolved


def test_a_file_finds_its_neighbours_and_hides_no_module(write, tmp_path):
    write("sub/json.py", "from helper import Config as Base\n" + textwrap.dedent(
        CONFIG.format(name="Config")))  # fmt: skip
    write("sub/helper.py", CONFIG.format(name="Config"))
    resolved = resolve("sub/json.py")
    assert (resolved.kind, resolved.file) == ("file", str(tmp_path / "sub/json.py"))
    assert resolved.takes["rank"]["required"]


def test_a_module_of_one_word_in_a_folder_given(write, tmp_path):
    write("elsewhere/errors.py", CONFIG.format(name="Config"))
    resolved = resolve("errors", process=RunProcess(cwd="elsewhere"))
    assert (resolved.module, resolved.cwd) == ("errors", str(tmp_path / "elsewhere"))


def test_a_package_is_what_python_m_runs(write):
    write("pkg/__init__.py", "raise_if_run = 1")
    write("pkg/__main__.py", CONFIG.format(name="Config"))
    assert resolve("pkg").config_class == "Config"


def test_the_class_named_else_cliconfig_else_the_only_one(write):
    two = CONFIG.format(name="A") + CONFIG.format(name="B")
    write("named.py", two)
    write("cli.py", two + CONFIG.format(name="CLIConfig"))
    write("only.py", "from named import A\n" + textwrap.dedent(CONFIG.format(name="Mine")))
    assert resolve("named:B").config_class == "B"
    assert resolve("cli").config_class == "CLIConfig"
    assert resolve("only").config_class == "Mine"
    assert resolve("only:A").config_class == "A"
    assert error("named") == (
        "recipe 'named': it defines 2 chz classes (A, B): choose one by adding its name to the "
        "recipe, such as :A"
    )
    write(
        "taken.py",
        two + "\n    def main(config: B) -> None: ...\n",
    )
    assert "(A, B): choose one by adding its name" in error("taken")
    assert "such as :B, which main takes" in error("taken")
    assert error("named:C") == "recipe 'named:C': it has no class C"
    assert error("named:chz") == (
        "recipe 'named:chz': chz is neither a chz class nor a function that returns a config"
    )


def test_recipes_of_ours_are_found_by_their_short_name_whatever_the_folder_holds(write):
    write("recipes/__init__.py", "raise RuntimeError('the user has recipes too')")
    write("recipes/sft.py", "raise RuntimeError('the user has recipes too')")
    resolved = resolve("sft")
    assert (resolved.module, resolved.on_path) == ("sweeper.recipes.sft", False)
    assert resolved.takes["batch_size"]["type"] == "int"


def test_what_cannot_be_used_is_one_line(write):
    write("broken.py", "import nowhere_to_be_found" + GUARD)
    write("leaves.py", "raise SystemExit(3)" + GUARD)
    write("dies.py", "import os; os._exit(7)" + GUARD)
    write("plain.py", "x = 1" + GUARD)
    write("nolog.py", "import chz\n@chz.chz\nclass C:\n    out: str = ''\n" + GUARD)
    write("wrong.py", "if __name__ == '__main__': pass\n)")
    hint = "(--no-validate plans without it)"
    assert error("broken") == (
        f"recipe 'broken' cannot be imported by {sys.executable}: "
        f"ModuleNotFoundError: No module named 'nowhere_to_be_found' {hint}"
    )
    assert f"SystemExit: 3 {hint}" in error("leaves")
    assert "SyntaxError: unmatched ')'" in error("wrong")
    assert error("dies") == f"recipe 'dies': {sys.executable} ended with code 7 while importing it"
    assert error("plain") == (
        "recipe 'plain': it defines no chz class; run it with `command:`, or name the class"
    )
    assert error("nolog") == (
        "recipe 'nolog': C has no field log_path; name the field in launch.log_path_field, "
        "or set launch.metrics_dir to the folder that the recipe writes to"
    )
    assert error("nolog", filled=FilledFields("oot")) == "recipe 'nolog': C has no field oot"
    assert resolve("nolog", filled=FilledFields("out")).log_path_field == "out"
    assert (
        resolve("nolog", filled=FilledFields(metrics_dir="{log_path}/run")).log_path_field is None
    )
    ours = "distill, dpo, eval, harbor, "
    assert f"no recipe or module is called 'sfft' (recipes: {ours}" in error("sfft")
    assert error("no/such.py").startswith("recipe 'no/such.py': no file /")
    assert error("a b") == "'a b' is not a recipe, module or file"
    assert error("sft", process=RunProcess("/no/python")).startswith(
        "launch.python: no interpreter"
    )


def test_what_a_recipe_does_while_it_is_imported_does_not_spoil_the_answer(write):
    write(
        "noisy.py",
        """
        import os, sys, threading, time
        print("hello")
        os.write(1, b"{}")
        print(sys.stdin.read())
        threading.Thread(target=time.sleep, args=(60,)).start()
        """
        + CONFIG.format(name="Config").replace("\n    ", "\n        "),
    )
    assert resolve("noisy").config_class == "Config"


def test_an_import_that_hangs_is_given_up(write, monkeypatch):
    monkeypatch.setattr("sweeper.recipe.reference.IMPORT_SECONDS", 0.5)
    write("hangs.py", "import time; time.sleep(600)" + GUARD)
    assert error("hangs") == "recipe 'hangs': importing it took longer than 0.5 s"


def test_what_an_import_starts_neither_holds_the_plan_up_nor_outlives_it(write, tmp_path):
    # One process holds stderr, like a shell's `&`; a forked one holds all open files.
    starts = """
        import os, subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        forked = os.fork()
        if not forked:
            import time; time.sleep(600)
        open("pids", "w").write(f"{{child.pid}} {{forked}}")
        {then}
        """
    end = "\n        if __name__ == '__main__': pass\n"
    config = CONFIG.format(name="Config").replace("\n    ", "\n        ")
    write("good.py", starts.format(then="") + config)
    write("bad.py", starts.format(then="raise ValueError") + end)
    write("dies.py", starts.format(then="os._exit(7)") + end)
    for name in ("good", "bad", "dies"):
        if name == "good":
            assert resolve(name).config_class == "Config"
        else:
            assert ("ValueError" if name == "bad" else "ended with code 7") in error(name)
        for pid in map(int, (tmp_path / "pids").read_text().split()):
            until(lambda pid=pid: not began(pid))


def test_a_module_that_nothing_starts_is_refused_before_it_is_imported(write, tmp_path):
    body = textwrap.dedent(CONFIG.format(name="Config")).partition("if __name__")[0]
    touch = "open('imported', 'w').close()\n"
    hint = (
        "running it would do nothing: end it with "
        '`if __name__ == "__main__": chz.nested_entrypoint(main)`, or run it with `command:`'
    )
    commented = '# if __name__ == "__main__":\nname = __name__, "__main__"\n'
    write("pkg/bare.py", touch + body + commented)
    write("alone.py", touch + body)
    assert error("pkg.bare") == f"recipe 'pkg.bare': {hint}"
    assert error("pkg/bare.py") == f"recipe 'pkg/bare.py': {hint}"
    assert error("alone") == f"recipe 'alone': {hint}"
    assert not (tmp_path / "imported").exists()
    write("turned.py", body + "if '__main__' == __name__:\n    print()\n")
    write("latin.py", "# -*- coding: latin-1 -*-\n" + body + "__name__ == '__main__' and print()")
    for source in ("turned", "turned.py", "latin"):
        assert resolve(source).config_class == "Config"


def test_what_would_start_a_run_when_it_is_imported_is_refused_before_that(write, tmp_path):
    """A plan must not start training."""
    body = textwrap.dedent(CONFIG.format(name="Config")).partition("if __name__")[0]
    body = "open('imported', 'w').close()\n" + body + "def main(config): pass\n"
    message = (
        "importing it starts a run, but planning has to import it: put that code "
        'under `if __name__ == "__main__":`, or run it with `command:`'
    )
    write("whole/__init__.py", "")
    write("whole/__main__.py", body + "chz.nested_entrypoint(main)\n")
    write("quiet/__init__.py", "")
    write("quiet/__main__.py", "from quiet.cli import app\napp()\n")
    write("quiet/cli.py", body)
    write("late.py", body + "import asyncio\nresult = asyncio.run(main(Config()))\n" + GUARD)
    write("builds.py", body + "def build(): return Config()\nmain(build())\n")
    for source in ("whole", "whole/__main__.py", "quiet", "late", "late.py", "builds:build"):
        assert error(source) == f"recipe {source!r}: {message}"
    assert not (tmp_path / "imported").exists()
    write("whole/__main__.py", body + GUARD)
    assert resolve("whole").config_class == "Config"


def test_a_function_of_a_package_itself_is_a_recipe(write):
    """Unlike a class, it needs no `__main__.py`."""
    body = textwrap.dedent(CONFIG.format(name="Config")).partition("if __name__")[0]
    functions = """
        def build(log_path: str, rank: int = 1) -> Config:
            return Config(log_path=log_path, rank=rank)

        def main(config: Config) -> None:
            pass
        """
    write("made/__init__.py", body + textwrap.dedent(functions))
    assert resolve("made:build").function == "build"
    assert "No module named 'made.__main__'" in error("made:Config")
    write("made/__main__.py", "from made import Config\n" + GUARD)
    assert resolve("made:Config").config_class == "Config"
    assert resolve("made:build").function == "build"


BUILDS = """
    import chz

    @chz.chz
    class Data:
        size: int = 8

    @chz.chz
    class Config:
        log_path: str
        name: str
        rate: float
        steps: int = 10
        data: Data

    def blueprint(name: str = "a", wide: bool = False) -> chz.Blueprint[Config]:
        data = Data(size=16 if wide else 8)
        return chz.Blueprint(Config).apply({"name": name, "rate": 0.5, "data": data})

    def config(log_path: str, name: str = "b") -> Config:
        return Config(log_path=log_path, name=name, rate=0.25, data=Data())

    def action() -> chz.Blueprint:
        return chz.Blueprint(main)

    def number() -> int:
        return 1

    def main(config: Config) -> None:
        print(config, flush=True)
"""


def test_a_function_that_returns_a_blueprint_or_a_config_is_a_recipe(write):
    write("builds.py", BUILDS)
    resolved = resolve("builds:blueprint")
    assert (resolved.function, resolved.config_class, resolved.log_path_field) == (
        "blueprint",
        "Config",
        "log_path",
    )
    assert resolved.takes["rate"] == {"type": "float", "doc": "", "default": 0.5}
    assert resolved.takes["name"]["default"] == "a"
    assert resolved.takes["wide"] == {"type": "bool", "doc": "", "default": False}
    given, problems, *_ = inspect("builds.py:config", [{"rate": 2.0}])
    assert (given.function, given.config_class, problems) == ("config", "Config", [])
    assert error("builds:action").startswith(
        "recipe 'builds:action': action() returns a Blueprint of <function main"
    )
    assert error("builds:number") == (
        "recipe 'builds:number': number() returns int, not a chz config or a Blueprint of one"
    )
    write("alone.py", BUILDS.partition("    def main")[0])
    assert error("alone:blueprint") == (
        "recipe 'alone:blueprint': no function main(config) in alone to run the returned config"
    )


def test_unknown_keys_of_a_functions_config_are_named(write):
    write("builds.py", BUILDS)
    given = [
        {"rate": 1, "wide": True, "data.size": 4, "name": "x"},
        {"rate": "much"},
        {"wide": 3},
        {"rat": 1.0},
        {"data.siz": 1},
        {"data": {"size": 1}},
    ]
    assert [problem[:3] for problem in inspect("builds:blueprint", given)[1]] == [
        (1, "rate", 'rate takes float, not "much"'),
        (2, "wide", "wide takes bool, not 3"),
        (3, "rat", "Config has no field 'rat'; did you mean 'rate'?"),
        (4, "data.siz", "Config has no field 'data.siz'; did you mean 'data.size'?"),
        (5, "data", "data is an object: set its fields, as in data.<field>"),
    ]


def test_without_validation_nothing_is_imported(write):
    write("broken.py", "raise RuntimeError")
    resolved = resolve("broken", validate=False)
    assert (resolved.module, resolved.log_path_field, resolved.seed_field) == (
        "broken",
        "log_path",
        "seed",
    )


def test_the_environment_of_the_run_is_that_of_the_check(write):
    write("needs.py", "import os; os.environ['MY_FLAG']\n" + textwrap.dedent(
        CONFIG.format(name="Config")))  # fmt: skip
    assert "KeyError: 'MY_FLAG'" in error("needs")
    assert resolve("needs", process=RunProcess(env={"MY_FLAG": "1"})).config_class == "Config"


def test_an_interpreter_is_found_on_the_path_and_its_link_kept(tmp_path, monkeypatch):
    link = tmp_path / "bin" / "mypython"
    link.parent.mkdir()
    link.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(link.parent))
    monkeypatch.chdir(tmp_path)
    assert find_python("mypython") == find_python("bin/mypython") == str(link)
    assert find_python(None) == sys.executable


def test_a_command_is_filled_element_by_element():
    template = ["run", "--lr={lr}", "{{x}}", "{a.b}{flag}", "{text}", "{none} {list}"]
    values = {
        "lr": 1e-4,
        "a.b": 3,
        "flag": True,
        "text": '$(touch pwn); "\n{lr}',
        "none": None,
        "list": [1, "a"],
    }
    assert placeholders(template) == ["lr", "a.b", "flag", "text", "none", "list"]
    assert render_command(template, values) == [
        "run",
        "--lr=0.0001",
        "{x}",
        "3true",
        '$(touch pwn); "\n{lr}',
        'null [1, "a"]',
    ]
    with pytest.raises(RecipeError, match=r"no value for \{nope\}"):
        render_command(["{nope}"], values)
    for stray in ("{", "a}", "{}", "{a{b}}"):
        with pytest.raises(RecipeError, match="stray brace"):
            placeholders([stray])
