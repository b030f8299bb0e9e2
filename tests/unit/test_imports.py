"""Imports go in one direction. What start-up loads is tested in tests/e2e/test_loading.py."""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sweeper.commands import PARENTS, VERBS, load

ROOT = Path(__file__).parents[2]

# A module may import from lower ranks and from its own package (another test forbids circles).
# A package stands for all its modules that are not named here.
RANKS = [
    {"errors"},
    {"sandbox", "paths", "common"},
    {"store"},
    {"sweep"},
    {"terminal", "money.prices", "engine", "fields", "recipe", "metrics"},
    {"sandbox.tasks", "backends", "telemetry"},
    {"grid"},
    {"planner", "worker", "alarms", "grid.translation"},
    {"results"},
    {"money"},
    {"scheduler"},
    {"launcher", "testing"},
    {"tui", "agents"},
    {"commands"},
    {"cli"},
    {"__main__", "__init__"},
]
RANK = {module: rank for rank, modules in enumerate(RANKS) for module in modules}
# Loaded by path in the recipe's interpreter, which may have no sweeper: they import sweeper for
# types only.
ALONE = {"start.py", "bootstrap.py", "inspection.py", "checking.py", "function_recipes.py",
         "meter.py", "recipe_hooks.py", "fork_server.py", "fork_protocol.py",
         "fresh_process.py", "own_packages.py"}  # fmt: skip


def _imported(path: Path) -> set[str]:
    """Return the dotted names of everything that a file imports, at any depth, also in calls."""
    named = {name for statement in _imports(path) for name in _names(statement)}
    return named | {match[1] for match in _CALL.finditer(path.read_text())}


_CALL = re.compile(r"""\bimport_module\(\s*["']([\w.]+)["']""")


_LINE = re.compile(
    r"^[ \t]*((?:from[ \t]+[\w.]+[ \t]+)?import[ \t]+(?:\([^)]*\)|.*(?:\\\n.*)*))", re.MULTILINE
)


@functools.cache
def _imports(path: Path) -> list[ast.stmt]:
    """Return each import. Parse only lines that import, unless a string looks like one."""
    text = path.read_text()
    matches = [*_LINE.finditer(text)]
    try:
        parsed = [ast.parse(line[1]).body for line in matches]
    except SyntaxError:
        inner = _statements(ast.parse(text))
        return [node for node in inner if isinstance(node, ast.Import | ast.ImportFrom)]
    return [statement for body in parsed for statement in body]


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements, but no expressions: these are many and import nothing."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, block, ()):
            yield inner
            yield from _statements(inner)


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        module = ("." * node.level) + (node.module or "")
        return {f"{module}.{alias.name}" for alias in node.names}
    return set()


def _loaded(path: Path) -> set[str]:
    """Return the dotted names that a file imports, without those under `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = [ast.Pass()]
    nodes = (node for node in _statements(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return {name for statement in nodes for name in _names(statement)}


def _module(path: Path) -> str:
    """Map `sweeper/backends/tmux.py` to `backends`, and `sweeper/cli.py` to `cli`."""
    return _ranked(".".join(path.relative_to(ROOT / "sweeper").with_suffix("").parts))


def _ranked(dotted: str) -> str:
    """Return the module of that name, or its package, as `RANKS` names it."""
    package, _, module = dotted.partition(".")
    room = f"{package}.{module.partition('.')[0]}"
    return room if room in RANK else package


FILES = sorted((ROOT / "sweeper").rglob("*.py"))


def test_every_module_has_a_rank():
    assert {_module(path) for path in FILES} == set(RANK)


def test_imports_point_one_way():
    assert [mistake for path in FILES for mistake in _mistakes(path)] == []


def _mistakes(path: Path) -> Iterator[str]:
    module, where = _module(path), path.relative_to(ROOT)
    for name in sorted(_loaded(path)) if path.name in ALONE else ():
        if name.partition(".")[0] == "sweeper":
            yield f"{where} must import nothing of ours: {name}"
    for name in _imported(path):
        top, *rest = name.split(".")
        if top in ("recipes", "analysis"):
            yield f"{where}: it is called sweeper.{top}: {name}"
        if top == "sweeper" and rest[:1] == ["recipes"]:
            yield f"{where}: sweeper never imports a recipe: {name}"
        if top == "sweeper" and rest[:1] == ["analysis"] and module not in ("commands", "agents"):
            yield f"{where}: only the command line and agents' tools import analysis: {name}"
        other = _ranked(".".join(rest)) if top == "sweeper" and rest else module
        same_package = other.partition(".")[0] == module.partition(".")[0]
        if other in RANK and not same_package and RANK[other] >= RANK[module]:
            yield f"{where}: {module} must not import {name}"


def test_no_import_goes_in_a_circle():
    """Imports at the top, in functions and for types count; `sweeper` itself is left out."""
    assert [sorted(circle) for circle in _circles(_graph(ROOT))] == []


def test_a_circle_is_found_whatever_it_goes_by(tmp_path):
    (tmp_path / "sweeper").mkdir()
    (tmp_path / "sweeper" / "a.py").write_text("def f():\n    from sweeper.b import g\n")
    (tmp_path / "sweeper" / "b.py").write_text("if TYPE_CHECKING:\n    from sweeper import c\n")
    (tmp_path / "sweeper" / "c.py").write_text("import sweeper.d\nimport sweeper.e\n")
    (tmp_path / "sweeper" / "d.py").write_text('lazy = lambda: import_module("sweeper.a").f()\n')
    (tmp_path / "sweeper" / "e.py").write_text("")
    assert _circles(_graph(tmp_path)) == [{f"sweeper.{name}" for name in "abcd"}]


def _graph(root: Path) -> dict[str, set[str]]:
    """Map each module of sweeper to the modules that it imports anywhere."""
    files: dict[str, Path] = {}
    for top in ("sweeper", "analysis", "recipes"):
        for path in (root / top).rglob("*.py"):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            files[name if top == "sweeper" else f"sweeper.{name}"] = path
    files.pop("sweeper", None)
    return {
        name: {target for line in _imported(path) if (target := _in(line, files))} - {name}
        for name, path in files.items()
    }


LISTED = {
    "sweeper.agents.server",
    "sweeper.analysis.figures.gallery",
    "sweeper.grid.translation.reading",
}
"""Modules that list others of their package: tools, figures of the report, files of programs."""
MOST_SINGLE = 40


def test_few_modules_have_one_importer():
    """A module with one importer in its package is one file too many, unless a table lists it."""
    graph = _graph(ROOT)
    importers = {name: [other for other in graph if name in graph[other]] for name in graph}
    verbs = {load(name).run.__module__ for name in VERBS if name not in PARENTS}
    alone = {name.removesuffix(".py") for name in ALONE}
    single: list[str] = []
    for name, others in importers.items():
        package, _, leaf = name.rpartition(".")
        if len(others) != 1 or others[0].rpartition(".")[0] != package:
            continue
        if name not in verbs and leaf not in alone and others[0] not in LISTED:
            single.append(name)
    assert len(single) <= MOST_SINGLE, single


def _in(name: str, files: Mapping[str, Path]) -> str | None:
    """Return the module of sweeper that an import of `name` (a module or a name in one) loads."""
    return next((file for file in (name, name.rpartition(".")[0]) if file in files), None)


def _circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the largest sets of modules that all import each other, directly or not."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, left = set[str](), [start]
        while left:
            new = graph[left.pop()] - seen
            seen |= new
            left += new
        reached[start] = seen
    circles = {
        frozenset(other for other in reached[name] if name in reached[other]) for name in graph
    }
    return sorted((set(circle) for circle in circles if circle), key=sorted)


def test_the_engine_stands_alone():
    """It runs elsewhere with few other packages of sweeper."""
    allowed = ("engine", "common", "errors", "paths", "sweep", "__version__")
    for path in sorted((ROOT / "sweeper" / "engine").rglob("*.py")):
        ours = {name.split(".")[1] for name in _imported(path) if name.startswith("sweeper.")}
        assert ours <= {*allowed}, path


def test_a_verb_has_its_arguments_and_what_it_does_in_one_file():
    """Only code that verbs share, and programs that are started, also add arguments."""
    verbs = [load(name) for name in VERBS if name not in PARENTS]
    assert all(verb.add_arguments.__module__ == verb.run.__module__ for verb in verbs)
    adding = {path for path in FILES if ".add_argument(" in path.read_text()}
    shared = {"commands.parser", "commands.arguments", "engine.__main__", "engine.limits"}
    places = {".".join(path.relative_to(ROOT / "sweeper").with_suffix("").parts) for path in adding}
    assert places <= shared | {verb.run.__module__.removeprefix("sweeper.") for verb in verbs}


def test_only_backends_name_a_backend():
    """A backend in another package can do what a built-in one can."""
    named = re.compile(r"slurm|sbatch|\baws|tmux", re.IGNORECASE)
    mentions: list[str] = []
    for package in ("fields", "grid", "planner", "worker"):
        for path in sorted((ROOT / "sweeper" / package).glob("*.py")):
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    node.value.value = ""  # a docstring
            mentions += [
                f"{path.relative_to(ROOT)}: {word}" for word in named.findall(ast.unparse(tree))
            ]
    assert mentions == []


def test_one_module_knows_the_kinds_of_remote_stores():
    """Except `doctor`, for its hints about packages, and AWS Batch, which is no store."""
    client = re.compile(r"\b(s3fs|boto3|botocore|aiobotocore|gcsfs|adlfs)\b")
    scheme = re.compile(r"""["'](s3a?|gs|gcs|az|abfss?)(://)?["']""")
    clients, schemes = set[str](), set[str]()
    for path in sorted((ROOT / "sweeper").rglob("*.py")):
        text, name = path.read_text(), path.relative_to(ROOT / "sweeper").as_posix()
        clients.update({name} if client.search(text) else ())
        schemes.update({name} if scheme.search(text) else ())
    ours = {"store/remote.py"}
    assert clients == ours | {"backends/aws_batch/client.py", "commands/doctor.py"}
    assert schemes == ours


def test_analysis_reads_through_the_registry():
    allowed = ("alarms", "common", "errors", "metrics", "money", "results", "sweep",
               "store.documents", "store.opening.open_store", "grid.extends",
               "fields.nodes.is_plain")  # fmt: skip
    for path in sorted((ROOT / "analysis").rglob("*.py")):
        used = {n.removeprefix("sweeper.") for n in _imported(path) if n.startswith("sweeper.")}
        others = {name for name in used if not name.startswith(("analysis", *allowed))}
        assert others == set(), path


ANALYSIS = ["labels", "reading", "statistics", "comparison", "findings", "figures", "page"]


def test_the_report_is_a_pipeline_whose_imports_point_one_way():
    """Each folder of analysis/ imports from those before it and from itself."""
    for number, folder in enumerate(ANALYSIS):
        later = {f"sweeper.analysis.{name}" for name in ANALYSIS[number + 1 :]}
        for path in (ROOT / "analysis" / folder).rglob("*.py"):
            packages = {".".join(name.split(".")[:3]) for name in _imported(path)}
            assert packages.isdisjoint(later), path


def test_recipes_know_nothing_of_sweeper():
    """Except the packages for recipes."""
    allowed = ("recipes", "sandbox", "telemetry")
    for path in sorted((ROOT / "recipes").rglob("*.py")):
        ours = {n for n in _imported(path) if n.split(".")[0] == "sweeper"}
        assert {n.split(".")[1] for n in ours if "." in n} <= set(allowed), path


def test_the_public_face():
    import sweeper

    for name in sweeper.__all__:
        assert getattr(sweeper, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = sweeper.nonsense
