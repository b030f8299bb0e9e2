"""Environments that jobs build: once, completely or not at all. A stand-in replaces uv."""

import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from sweeper.common.sweeper_argv import array_command, worker_command
from sweeper.recipe import job_bundle
from sweeper.sweep.plan import Carried
from sweeper.worker import bare_machine

UV = """#!/bin/sh
[ "$1" = venv ] && mkdir -p "$5/bin" && touch "$5/bin/python" && exit 0
echo >> {folder}/begun
while [ ! -e {folder}/go ]; do sleep 0.05; done
[ -e {folder}/broken ] && cat {folder}/broken && exit 1
exit 0
"""
CROSS = "\N{MULTIPLICATION SIGN}"
BUILDER = (
    "from sweeper.worker import bare_machine; import sys; print(bare_machine.build(*sys.argv[1:]))"
)


class Bench:
    """A folder with the installer, and programs that build there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.environments = folder, folder / "built"
        (folder / "bin").mkdir()
        (folder / "bin" / "uv").write_text(UV.format(folder=folder))
        (folder / "bin" / "uv").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")

    def start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", BUILDER, str(self.environments), "a==1\n"],
            stdout=subprocess.PIPE,
            text=True,
        )

    def begun(self, count: int = 1) -> None:
        """Wait until the installer has been started `count` times."""
        path = self.folder / "begun"
        while not path.exists() or len(path.read_text()) < count:
            time.sleep(0.02)

    def made(self) -> list[Path]:
        return list(self.environments.glob("*/requirements.txt"))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def _path(output: str) -> Path:
    return Path(output.strip().splitlines()[-1])


def test_simultaneous_builds_make_one_environment(bench):
    first = bench.start()
    bench.begun()
    second = bench.start()
    assert "waiting for another job" in second.stdout.readline()
    (bench.folder / "go").touch()
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert _path(outputs[0]) == _path(outputs[1]) and _path(outputs[0]).exists()
    assert (bench.folder / "begun").read_text() == "\n"
    assert [path.read_text() for path in bench.made()] == ["a==1\n"]


def test_a_killed_build_leaves_nothing_half_done(bench):
    """Its installer continues, and no other build starts before that has ended."""
    first = bench.start()
    bench.begun()
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    assert not bench.made()
    second = bench.start()
    assert "waiting for another job" in second.stdout.readline()
    (bench.folder / "go").touch()
    output, _ = second.communicate(timeout=60)
    assert _path(output).exists() and len(bench.made()) == 1
    assert (bench.folder / "begun").read_text() == "\n\n"


def test_a_build_that_is_told_to_stop_leaves_nothing(bench):
    """Its installer is killed, and its files are removed."""

    def goes_on() -> bool:
        bench.begun()
        return False

    assert bare_machine.build(str(bench.environments), "a==1\n", goes_on=goes_on) is None
    assert [path.name for path in bench.environments.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    "output",
    [
        "looks\nno such package\n",
        "no such package\nhint: look elsewhere\n",
        "ERROR: no such package\nnote: this is no problem with pip\nsee above\n",
        "error: no such package\n",
        f"  {CROSS} no such\n  ╰─> package\n\nhint: See above for details.\n",
    ],
)
def test_a_failed_build_reports_the_last_line(bench, output):
    (bench.folder / "go").touch()
    (bench.folder / "broken").write_text(output)
    with pytest.raises(bare_machine.BuildError, match=r"\Ano such package\Z"):
        bare_machine.build(str(bench.environments), "a==1\n")
    assert not [path for path in bench.environments.iterdir() if path.is_dir()]
    (bench.folder / "broken").unlink()
    assert bare_machine.build(str(bench.environments), "a==1\n")


def test_other_requirements_are_another_environment(bench):
    (bench.folder / "go").touch()
    first, second = (
        bare_machine.build(str(bench.environments), text) for text in ("a==1\n", "a==2\n")
    )
    assert first != second and len(bench.made()) == 2
    assert bare_machine.build(str(bench.environments), "a==1\n") == first
    assert len((bench.folder / "begun").read_text()) == 2


INDEX = "https://reader:s3cret-one@packages.example.com/simple"


def _built(bench: Bench, settings: dict[str, str]) -> str | None:
    """Build with these variables, and return the environment."""
    environ = {"PATH": os.environ["PATH"], **settings}
    return bare_machine.build(str(bench.environments), "a==1\n", environ)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"PIP_INDEX_URL": INDEX}),
        ({"PIP_INDEX_URL": INDEX}, {"PIP_INDEX_URL": INDEX.replace("simple", "nightly")}),
        ({}, {"PIP_EXTRA_INDEX_URL": INDEX}),
        ({}, {"PIP_NO_INDEX": "1"}),
        ({}, {"PIP_FIND_LINKS": "/opt/wheels"}),
        ({}, {"PIP_CONSTRAINT": "https://example.com/constraints.txt"}),
        ({}, {"PIP_PRE": "1"}),
        ({}, {"PIP_NO_BINARY": "a"}),
        ({}, {"UV_INDEX_URL": INDEX}),
        ({}, {"UV_DEFAULT_INDEX": INDEX}),
        ({}, {"UV_INDEX": f"lab={INDEX}"}),
        ({}, {"UV_NO_BINARY_PACKAGE": "a"}),
        ({"UV_EXCLUDE_NEWER": "2026-01-01"}, {"UV_EXCLUDE_NEWER": "2026-02-01"}),
    ],
    ids=lambda given: ",".join(given) or "-",
)
def test_a_setting_that_chooses_packages_is_another_environment(bench, before, after):
    """No written file has the value, which may contain a password."""
    (bench.folder / "go").touch()
    first, second = (_built(bench, given) for given in (before, after))
    assert first != second and len(bench.made()) == 2
    assert _built(bench, before) == first
    assert not any("s3cret" in path.name for path in bench.environments.rglob("*"))
    texts = [path.read_text() for path in bench.environments.rglob("*.txt")]
    assert len(texts) == 2 and not any("s3cret" in text for text in texts)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"PIP_INDEX_URL": INDEX}, {"PIP_INDEX_URL": INDEX.replace("s3cret-one", "s3cret-two")}),
        ({}, {"PIP_CACHE_DIR": "/opt/a", "UV_CACHE_DIR": "/opt/b"}),
        ({}, {"PIP_TIMEOUT": "60", "UV_HTTP_TIMEOUT": "60"}),
        ({}, {"UV_INDEX_LAB_USERNAME": "reader", "UV_INDEX_LAB_PASSWORD": "s3cret-one"}),
    ],
    ids=["a login that is renewed", "a cache", "a time limit", "a login apart"],
)
def test_settings_that_choose_no_packages_share_the_environment(bench, before, after):
    (bench.folder / "go").touch()
    first, second = (_built(bench, given) for given in (before, after))
    assert first == second and len(bench.made()) == 1


@pytest.mark.parametrize("name", ["PIP_CONSTRAINT", "UV_OVERRIDE", "PIP_CONFIG_FILE"])
def test_a_file_that_a_setting_names_counts_by_what_it_holds(bench, name):
    (bench.folder / "go").touch()
    file = bench.folder / "versions.txt"
    made: list[str | None] = []
    for text in ("b==1\n", "b==2\n", "b==1\n"):
        file.write_text(text)
        made.append(_built(bench, {name: str(file)}))
    assert made[0] == made[2] != made[1]


def test_the_command_of_a_bare_job_is_short_and_needs_no_sweeper():
    """AWS Batch limits the description of a job to 8 KB."""
    packages = tuple(job_bundle.pinned(["s3fs"]))
    along = Carried(f"{'sweep' * 10}/code/sweeper-{'0' * 32}.zip", "0" * 32, packages, {})
    root = f"s3://{'bucket' * 10}/{'prefix/' * 10}"
    command = job_bundle.bare_command("python", root, along)
    assert "sweeper." not in command[3].replace("sweeper.worker", "")
    assert len("".join(command)) < 7000
    assert "$" not in command[3]  # Kubernetes would expand it
    worker = worker_command("s3://b/s", "t-a1", bare=command)
    assert worker[5:] == ["sweeper.worker.main", "s3://b/s", "t-a1"]
    child = array_command(worker[:-1], "s3://b", "s/arrays/0.json")
    assert child[5:8] == ["sweeper.worker.array", "s3://b", "s/arrays/0.json"]
    assert child[8:] == ["-P", "-m", "sweeper.worker.main", "s3://b/s"]
    (requirement, *_) = (package for package in packages if package.startswith("s3fs=="))
    assert requirement.partition("==")[2][0].isdigit()


def test_an_interpreter_without_ensurepip_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no uv
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(bare_machine.BuildError, match="has no ensurepip: add python3-venv"):
        bare_machine.build(str(tmp_path), "a==1\n")


ALONG = Carried("s/code/sweeper.zip", "0" * 32, ("a==1",), {})


def test_an_old_interpreter_is_reported(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11"):
        exec(job_bundle.bare_command("python", "s3://b", ALONG)[3], {})  # noqa: S102 - as Python would


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7", "3.8", "3.9", "3.10"])
def test_older_interpreters_report_themselves(version, tmp_path):
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], check=False).returncode:
        pytest.skip(f"there is no python{version} here")
    command = job_bundle.bare_command(python, "s3://b", ALONG)
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 1 and ended.stderr.startswith("sweeper: needs Python 3.11, and ")


def test_the_packed_builder_equals_its_source():
    """Each line of the source is in the packed text, except docstrings."""
    first = job_bundle.bare_command("python", "s3://b", ALONG)[3]
    packed = max(re.findall(r"[A-Za-z0-9+/=]+", first), key=len)
    text = zlib.decompress(base64.b64decode(packed)).decode()
    compile(text, "bare", "exec")
    sent, lines = set(text.splitlines()), Path(bare_machine.__file__).read_text().splitlines()
    begun = lines.index("def say(line: str) -> None:")
    code = [line for line in lines[begun:] if 'f"' in line and '"""' not in line]
    assert code and not set(code) - sent


def test_the_first_text_reads_no_module_of_the_working_folder(tmp_path):
    (tmp_path / "base64.py").write_text("raise SystemExit('of the working folder')\n")
    command = job_bundle.bare_command(sys.executable, "s3://b", ALONG)
    command[4] = "not JSON"
    ended = subprocess.run(
        [*command, "module"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert "JSONDecodeError" in ended.stderr


def test_environments_are_private_to_their_user(bench):
    (bench.folder / "go").touch()
    bare_machine.build(str(bench.environments), "a==1\n")
    assert bench.environments.stat().st_mode & 0o077 == 0


def test_values_of_secret_variables_are_masked(bench, monkeypatch, capfd):
    """Both as they are and encoded for a URL."""
    monkeypatch.setenv("INDEX_KEY", "p/w d%20")
    (bench.folder / "go").touch()
    output = "looks at https://u:p%2Fw%20d%2520@h/\nERROR: p/w d%20 is no key\n"
    (bench.folder / "broken").write_text(output)
    with pytest.raises(bare_machine.BuildError) as caught:
        bare_machine.build(str(bench.environments), "--index-url https://u:${INDEX_KEY}@h/\na==1\n")
    assert str(caught.value) == "${INDEX_KEY} is no key"
    assert "https://u:${INDEX_KEY}@h/" in capfd.readouterr().out


PIPS = f"""Collecting first==1.0 (from -r requirements.txt (line 1))
Collecting second==1.0 (from -r requirements.txt (line 2))
  error: subprocess-exited-with-error
  {CROSS} Getting requirements to build wheel did not run successfully.
  │ exit code: 1
  ╰─> [3 lines of output]
      error: something
      [end of output]
  note: This error originates from a subprocess, and is likely not a problem with pip.
error: subprocess-exited-with-error
{CROSS} Getting requirements to build wheel did not run successfully.
│ exit code: 1
╰─> See above for output.
note: This error originates from a subprocess, and is likely not a problem with pip.
"""
UVS = f"""Using Python 3.11
  {CROSS} No solution found when resolving dependencies:
  ╰─▶ Because there is no version of a==3.0 and you require
      a==3.0, your requirements are unsatisfiable.
"""


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (PIPS,
         "Getting requirements to build wheel did not run successfully. (Collecting second==1.0)"),
        (UVS,
         "No solution found when resolving dependencies: Because there is no version of a==3.0 "
         "and you require a==3.0, your requirements are unsatisfiable."),
        ("error: Failed to fetch: `x`\n  Caused by: no route\n",
         "Failed to fetch: `x` Caused by: no route"),
    ],
)  # fmt: skip
def test_common_failures_of_pip_and_uv_are_summarised(bench, output, message):
    """The messages are recorded from pip and uv; other versions have similar ones."""
    (bench.folder / "go").touch()
    (bench.folder / "broken").write_text(output)
    with pytest.raises(bare_machine.BuildError) as caught:
        bare_machine.build(str(bench.environments), "a==1\n")
    assert str(caught.value) == message
