"""Imports point one way, and what starts quickly stays light."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A module may import from ranks below its own. Packages stand for all that is in them.
RANKS = [
    {"errors", "command", "states"},
    {"where", "metrics", "engine", "grid", "recipe", "store"},
    {"planner", "provenance", "terminal", "backends", "tables"},
    {"worker", "records"},
    {"launcher", "testing", "registry"},
    {"verbs"},
    {"reading"},
    {"cli"},
    {"__main__", "__init__"},
]
RANK = {module: rank for rank, modules in enumerate(RANKS) for module in modules}
# Loaded by path in the recipe's interpreter, which may have no sweeper: import nothing of ours.
ALONE = {"bootstrap.py", "inspection.py", "checking.py"}
HEAVY = {"tinker", "wandb", "pandas", "plotly", "numpy", "scipy", "transformers", "starlette"}


def _imported(path: Path) -> set[str]:
    """Dotted names of everything that a file imports, at any depth."""
    return {name for node in ast.walk(ast.parse(path.read_text())) for name in _names(node)}


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        module = ("." * node.level) + (node.module or "")
        return {f"{module}.{alias.name}" for alias in node.names}
    return set()


def _module(path: Path) -> str:
    """`sweeper/backends/tmux.py` -> `backends`; `sweeper/cli.py` -> `cli`."""
    return path.relative_to(ROOT / "sweeper").parts[0].removesuffix(".py")


FILES = sorted((ROOT / "sweeper").rglob("*.py"))


def test_every_module_has_a_rank() -> None:
    assert {_module(path) for path in FILES} == set(RANK)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    module = _module(path)
    for name in _imported(path):
        top, *rest = name.split(".")
        assert top != "recipes", f"sweeper never imports a recipe: {name}"
        if top == "analysis":
            assert module == "verbs", f"only the command line imports analysis: {name}"
        if top == "sweeper":
            assert path.name not in ALONE, f"{path} must import nothing of ours: {name}"
        if top == "sweeper" and rest and rest[0] in RANK and rest[0] != module:
            assert RANK[rest[0]] < RANK[module], f"{module} must not import {name}"


def test_no_import_goes_in_a_circle() -> None:
    """Of those at the top of a module; `CycleError` names the circle."""
    dotted = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for name, path in dotted.items():
        body = ast.parse(path.read_text()).body
        lines = {line for node in body for line in _names(node)}
        graph[name] = {m for m in dotted if any(x == m or x.startswith(f"{m}.") for x in lines)}
    assert list(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("path", sorted((ROOT / "analysis").rglob("*.py")), ids=lambda p: p.name)
def test_analysis_reads_through_the_registry(path: Path) -> None:
    allowed = ("store.documents", "registry", "records", "errors", "metrics", "states")
    used = {n.removeprefix("sweeper.") for n in _imported(path) if n.startswith("sweeper.")}
    assert {name for name in used if not name.startswith(allowed)} == set()


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").rglob("*.py")), ids=lambda p: p.name)
def test_recipes_know_nothing_of_sweeper(path: Path) -> None:
    assert not {n for n in _imported(path) if n.split(".")[0] in {"sweeper", "analysis"}}


def _loaded_by(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(' '.join(sys.modules))"
    command = [sys.executable, "-P", "-c", code]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_the_command_line_starts_light() -> None:
    loaded = {name.split(".")[0] for name in _loaded_by("import sweeper.cli as c; c.parser()")}
    assert not loaded & (HEAVY | {"recipes", "analysis", "libtmux", "rich", "chz", "ruamel"})


def test_the_worker_loads_no_third_party_package() -> None:
    bare = _loaded_by("pass")
    extra = {name.split(".")[0] for name in _loaded_by("import sweeper.worker.main") - bare}
    assert extra - {"sweeper"} <= sys.stdlib_module_names


def test_what_a_remote_store_takes_is_not_loaded_for_a_local_one() -> None:
    statement = "import sweeper.cli, sweeper.registry as r; r.Registry('/nowhere').sweeps()"
    loaded = {name.split(".")[0] for name in _loaded_by(statement)}
    assert not loaded & {"s3fs", "botocore", "aiobotocore", "gcsfs", "adlfs"}
    assert "fsspec" not in {n.split(".")[0] for n in _loaded_by("import sweeper.launcher.start")}


def test_the_public_face() -> None:
    import sweeper

    for name in sweeper.__all__:
        assert getattr(sweeper, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = sweeper.nonsense
