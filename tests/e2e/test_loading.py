"""What an interpreter loads for each task, observed in new interpreters."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support import written

import sweeper
from sweeper.store.opening import open_store

pytestmark = pytest.mark.e2e

HEAVY = {"tinker", "wandb", "pandas", "plotly", "numpy", "scipy", "transformers", "starlette"}


def _run(code: str, *arguments: str, **environment: str) -> list[str]:
    """Return the words that a program prints."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def _loaded_by(statement: str) -> set[str]:
    """Return the packages that a statement loads."""
    words = _run(f"{statement}; import sys; print(' '.join(sys.modules))")
    return {name.split(".")[0] for name in words}


def test_the_command_line_starts_light() -> None:
    """Without a verb it loads no verb's file. Files of verbs load nothing that draws or trains."""
    words = _run(
        "import sweeper.cli, sweeper.commands.parser as c, sys; c.parser(['--help']); "
        "print(' '.join(sys.modules))"
    )
    slow = {"rich", "textual", "chz", "ruamel"}
    assert "argparse" in words
    assert not {word.partition(".")[0] for word in words} & (HEAVY | slow)
    verbs = {word for word in words if word.startswith("sweeper.commands.")}
    assert verbs == {"sweeper.commands.parser"}
    assert not {"sweeper.recipes", "sweeper.analysis", "sweeper.results.registry"} & {*words}
    columns = {"numpy"}  # `rollouts` and `gc` need it
    loaded = _loaded_by("import sweeper.cli, sweeper.commands.parser as c; c.parser()")
    assert not loaded & ((HEAVY | slow) - columns - {"ruamel"})


@pytest.mark.parametrize("module", ["sweeper.worker.main", "sweeper.engine.lifecycle"])
def test_what_is_started_often_loads_no_third_party_package(module: str) -> None:
    extra = _loaded_by(f"import {module}") - _loaded_by("pass")
    assert "sweeper" in extra
    assert extra - {"sweeper"} <= sys.stdlib_module_names


def test_what_a_remote_store_takes_is_not_loaded_for_a_local_one() -> None:
    statement = "import sweeper.cli, sweeper.results.registry as r; r.Registry('/nowhere').sweeps()"
    assert not _loaded_by(statement) & {"s3fs", "botocore", "aiobotocore", "gcsfs", "adlfs"}
    assert "fsspec" not in _loaded_by("import sweeper.launcher.launching")


@pytest.mark.parametrize(
    "verb",
    ["status", "status s", "ls s", "show s/one", "sql 'select * from runs'", "costs s",
     "checkpoints s", "alarms s", "rollouts s/one", "logs s", "store gc", "analyze s"],
)  # fmt: skip
def test_a_command_that_reads_a_remote_store_does_not_load_its_client(
    s3_root: str, verb: str
) -> None:
    """Only the process shared by commands and workers loads it."""
    store = open_store(s3_root)
    runs = [{"id": "a" * 12, "name": "one", "cell": "c", "seed": None, "config": {}}]
    plan = {"schema": 1, "name": "s", "metric": {"name": "x", "goal": "minimize"}, "recipe": {}}
    plan |= {"launch": {}, "axes": {}, "runs": runs}
    store.replace("s/sweep.json", json.dumps(plan).encode())
    store.replace(f"s/state/{'a' * 12}/1.succeeded.json", b'{"schema": 1}')
    store.replace(f"s/runs/{'a' * 12}.1/metrics.jsonl", b'{"step": 0, "x": 1}\n')
    store.replace(f"s/attempts/{'a' * 12}.1/stdout.log", b"a line\n")
    words = _run(
        "import sys; from contextlib import redirect_stdout as r; import sweeper.cli as c\n"
        "with r(sys.stderr): c.main(sys.argv[1:])\n"
        "print(' '.join(sys.modules))",
        *shlex.split(verb),
        SWEEPER_ROOT=s3_root,
    )
    assert "sweeper.store.shared" in words
    assert not {word.split(".")[0] for word in words} & {"s3fs", "botocore", "fsspec"}


def test_importing_a_recipe_imports_no_heavy_package() -> None:
    heavy = {"tinker", "numpy", "transformers", "torch", "httpx", "wandb"}
    assert not _loaded_by("import sweeper.recipes.sft") & heavy
    words = _run("import sweeper.recipes.sft, sys; print(' '.join(sys.modules))")
    ours = {word for word in words if word.startswith("sweeper.")}
    assert {word for word in ours if not word.startswith("sweeper.recipes")} == set()


def test_importing_analysis_is_light() -> None:
    loaded = _loaded_by("from sweeper import analysis; assert analysis.__all__")
    assert not loaded & {"pandas", "plotly", "scipy", "numpy", "jinja2"}


def test_a_report_loads_no_heavy_library_but_matplotlib_for_its_pictures(tmp_path: Path) -> None:
    written.grid_of_means(tmp_path, {(1e-4, 8): 0.9, (1e-3, 8): 0.2, (1e-2, 8): 1.1})
    code = (
        "import sys; from sweeper import analysis\n"
        "heavy = {'pandas', 'pyarrow', 'duckdb', 'plotly', 'matplotlib', 'scipy.stats', 'fsspec'}\n"
        "for pictures in (False, True):\n"
        "    report = analysis.analyze(sys.argv[1], 'demo', pictures=pictures)\n"
        "    assert ('cells.png' in report.files) is pictures\n"
        "    print(pictures, *heavy & set(sys.modules))\n"
    )
    assert _run(code, str(tmp_path)) == ["False", "True", "matplotlib"]


def test_records_need_no_pandas(tmp_path: Path) -> None:
    sweep = written.Written(tmp_path, "alpha")
    sweep.run({"lr": 1}, 0, [{"step": 0, "test/nll": 1.0}])
    sweep.save()
    code = (
        "import sys; from sweeper.results.registry import Registry\n"
        "r = Registry(sys.argv[1]); assert len(r.records()) == 1; r.sweep_records()\n"
        "assert 'value' not in r.records(values=False)[0]\n"
        "print(*{'pandas', 'numpy', 'plotly', 'sweeper.analysis'} & set(sys.modules))\n"
    )
    assert _run(code, str(tmp_path)) == []


def test_ids_are_the_same_in_another_process_with_another_hash_seed() -> None:
    grid = {"name": "v", "command": ["true"], "grid": {"b": ["x", 2], "a": [1e-4]}, "seeds": 2}
    code = f"import sweeper\nprint(*[run.id for run in sweeper.plan({grid!r}).runs])"
    expected = [run.id for run in sweeper.plan(grid).runs]
    assert _run(code, PYTHONHASHSEED="7") == expected
