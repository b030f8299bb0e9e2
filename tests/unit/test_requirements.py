"""`launch.requirements`: mistakes in the file are reported by `plan`, with their place."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sweeper import plan
from sweeper.errors import GridError, UsageError
from sweeper.launcher.preview import document, job_builder, survey
from sweeper.recipe import job_bundle, snapshot
from sweeper.recipe.requirements import read
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder

GRID = """name: s
command: [sh, train.py]
service: none
grid: {x: [1]}
launch:
  backend: %s
  requirements: %s
  beaker: {image: lab/python}
"""


@pytest.fixture
def checkout(tmp_path: Path, config_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    monkeypatch.chdir(folder)
    return folder


def _planned(checkout: Path, file: str, text: str | None = None, backend: str = "beaker") -> Any:
    if text is not None:
        (checkout / file).write_text(text)
    (checkout / "grid.yaml").write_text(GRID % (backend, file))
    return plan("grid.yaml")


def _refused(checkout: Path, file: str, text: str | None = None) -> list[str]:
    with pytest.raises(GridError) as caught:
        _planned(checkout, file, text)
    return list(caught.value.problems)


def test_a_missing_file_is_refused_at_its_place(checkout: Path) -> None:
    (mistake,) = _refused(checkout, "needs.txt")
    assert mistake == f"grid.yaml:7:17: launch.requirements: there is no file {checkout}/needs.txt"


def test_a_file_outside_the_checkout_is_refused(checkout: Path) -> None:
    (mistake,) = _refused(checkout, "../needs.txt", "a==1\n")
    assert "grid.yaml:7:17: " in mistake and f"is outside the checkout {checkout}" in mistake
    (checkout / ".gitignore").write_text("*.txt\n")
    (mistake,) = _refused(checkout, "needs.txt", "a==1\n")
    assert "git ignores" in mistake


def test_lines_that_mean_something_only_here_are_refused(checkout: Path) -> None:
    text = (
        "# what we need\n"
        "-r others.txt\n"
        "-e .\n"
        "./wheels/a.whl\n"
        "--find-links=wheels\n"
        "-i https://me:pass" + "word@example.com/simple\n"  # in two, to not look like a password
        "a==1 \\\n"
        "  --hash=sha256:00\n"
        "b @ file:///opt/b.whl\n"
        "c @ git+https://example.com/c\n"
        "--find-links /opt/wheels\n"
        "--index-url https://${NAME}:${KEY}@example.com/simple\n"
    )
    mistakes = _refused(checkout, "needs.txt", text)
    path = f"{checkout}/needs.txt"
    assert [line.partition(f"{path}:")[2].partition(":")[0] for line in mistakes] == list("23456")
    assert "copy the lines of the other file into it" in mistakes[0]
    assert "password" in mistakes[4] and "example.com" not in mistakes[4]
    assert read(path).options == (
        "--find-links /opt/wheels",
        "--index-url https://${NAME}:${KEY}@example.com/simple",
    )


def test_a_backend_that_sees_this_machines_files_ignores_the_file(checkout: Path) -> None:
    planned = _planned(checkout, "needs.txt", backend="local")
    assert any("needs.txt" not in w and "launch.python" in w for w in planned.warnings)


def test_the_file_and_the_source_are_bundled_once(checkout: Path, tmp_path: Path) -> None:
    """The file is bundled by its path below the checkout."""
    planned = _planned(checkout, "needs.txt", "--no-index\na==1\n")
    store = open_store(str(tmp_path / "root"))
    folder = SweepFolder(store, planned.name)
    made = snapshot.make(folder, str(checkout))
    bundle = job_bundle.carry(folder, planned, made)
    assert bundle is not None
    assert dict(bundle.files) == {"needs.txt": "needs.txt"}
    assert bundle.packages[0] == "--no-index"
    assert store.exists(bundle.archive)
    assert job_bundle.carry(folder, planned, made) == bundle
    named = planned._replace(carried=bundle, created="now")
    document = json.loads(json.dumps(named.document()))
    assert document["carried"]["files"] == {"needs.txt": "needs.txt"}
    with pytest.raises(UsageError, match="not in the copy of the code: --live"):
        job_bundle.carry(folder, planned, snapshot.CodeCopy(None, "--live"))


def test_the_shared_part_of_jobs_is_in_the_plan_once(checkout: Path) -> None:
    (checkout / "needs.txt").write_text("a==1\n")
    grid = GRID % ("beaker", "needs.txt")
    (checkout / "grid.yaml").write_text(grid.replace("[1]", "[1, 2, 3]"))
    planned, store = plan("grid.yaml"), open_store("memory://plans")
    surveyed = survey(planned, store)
    shown: Any = document(surveyed)
    builder = job_builder(surveyed)
    assert builder is not None
    for preview, run in zip(surveyed.previews, shown["runs"], strict=True):
        assert run["job"]["bare"]
        whole = [*shown["bare"], *run["job"]["argv"]]
        assert whole == builder.spec(preview.run, 1, "beaker").argv
    text = json.dumps(shown)
    assert text.count(json.dumps(shown["bare"][3])) == 1
    (checkout / "grid.yaml").write_text(grid.replace("  requirements: needs.txt\n", ""))
    shown = document(survey(plan("grid.yaml"), store))
    assert shown["bare"] == [] and [run["job"]["bare"] for run in shown["runs"]] == [False]


def _mistakes(folder: Path, line: str) -> tuple[str, ...]:
    (folder / "needs.txt").write_text(f"{line}\n")
    return read(str(folder / "needs.txt")).mistakes


@pytest.mark.parametrize(
    "line",
    [
        "a @ git+ssh://git@example.com/org/repo",
        "a @ git+https://example.com:8443/a@v1",
        "a @ git+https://example.com/a@v1",
        "a @ git+https://${TOKEN}@example.com/a@v1",
        "--index-url https://${NAME}:${KEY}@example.com/simple",
        "/opt/wheels/a.whl",
        "a[b]>=1; platform_machine != 'x/y'",
    ],
)
def test_lines_that_other_machines_understand_are_accepted(tmp_path: Path, line: str) -> None:
    assert not _mistakes(tmp_path, line)


PASSWORDS = ["u:p/w@h/simple", "u:p@w@h/simple", "u:1234@h/simple", "token@h/simple"]
PATHS = ["libs/mylib", "libs/mylib[more]", ".", "..", ".[dev]", "a.tar.bz2"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        *((f"--index-url https://{address}", "a password in an address") for address in PASSWORDS),
        *((f"a @ git+https://{address}", "a password in an address") for address in PASSWORDS),
        *((path, "do not see paths of this machine") for path in PATHS),
    ],
)
def test_passwords_and_paths_of_this_machine_are_refused(
    tmp_path: Path, line: str, problem: str
) -> None:
    (mistake,) = _mistakes(tmp_path, line)
    assert problem in mistake and "h/simple" not in mistake


def test_index_options_are_kept(tmp_path: Path) -> None:
    options = {
        "--index-url https://h/simple?sig=abc": "--index-url https://h/simple?sig=abc",
        "--extra-index-url=https://h/more?sig=abc": "--extra-index-url https://h/more?sig=abc",
        "--trusted-host h": "--trusted-host h",
        "-f\t/opt/wheels": "-f /opt/wheels",
        "-f/opt/more": "-f /opt/more",
    }
    (tmp_path / "needs.txt").write_text("".join(f"{line}\n" for line in options))
    assert read(str(tmp_path / "needs.txt")) == (tuple(options.values()), ())
