"""The code as it was at launch, and how it differed from its commit."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sweeper.common.redaction import Redactor
from sweeper.errors import StoreError
from sweeper.recipe import bootstrap, provenance, snapshot
from sweeper.recipe import checkout as checkouts
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder

pytestmark = pytest.mark.e2e


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout with a tracked module, ignored data, an untracked file and a store."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    root = tmp_path / "project"
    (root / "package").mkdir(parents=True)
    (root / "package" / "code.py").write_text("version = 1\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / ".gitignore").write_text("data\n*.env\n")
    (root / "data").mkdir()
    (root / "data" / "big.bin").write_text("big")
    (root / "link").symlink_to("package/code.py")
    (root / "away").symlink_to("/etc/hostname")
    _git(root, "init", "-q")
    _git(root, "add", "-A")
    _git(root, "commit", "-qm", "one")
    (root / "new.py").write_text("untracked = True\n")
    return root


def _git(root: Path, *arguments: str) -> bytes:
    author = ["-c", "user.name=n", "-c", "user.email=n@x"]
    command = ["git", "-C", str(root), *author, *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout


def _make(root: Path, **options: Any) -> tuple[LocalStore, snapshot.CodeCopy]:
    store = LocalStore(str(root / "sweeps"))
    return store, snapshot.make(SweepFolder(store, "s"), str(root), **options)


def _extract(store: LocalStore, made: snapshot.CodeCopy, home: Path) -> Path:
    return Path(snapshot.extract(store, made.snapshot, str(home)))


def _has_changed(store: LocalStore, copy: snapshot.Snapshot) -> bool:
    now = snapshot.preview(store, copy)
    return now is None or now.snapshot != copy


def test_the_copy_has_the_code_and_links_to_the_rest(checkout: Path, tmp_path: Path) -> None:
    (checkout / "package" / "code.py").write_text("version = 2\n")
    index = (checkout / ".git" / "index").read_bytes()
    store, made = _make(checkout)
    copy = made.snapshot
    assert (copy.root, copy.cwd) == (str(checkout), ".")
    (checkout / "package" / "code.py").write_text("version = 3\n")
    top = Path(snapshot.extract(store, copy, str(tmp_path / "home")))
    assert (top / "package" / "code.py").read_text() == "version = 2\n"
    assert (top / "new.py").read_text() == "untracked = True\n"
    assert os.access(top / "run.sh", os.X_OK)
    assert not os.access(top / "new.py", os.X_OK)
    assert os.readlink(top / "data") == str(checkout / "data")
    assert os.readlink(top / "link") == "package/code.py"
    assert (top / "link").read_text() == "version = 2\n"
    assert made.linked == ("away",)
    assert (top / "away").resolve() == Path("/etc/hostname").resolve()
    (checkout / "package" / "code.py").write_text("version = 4\n")
    _git(checkout, "commit", "-qam", "two")
    index = (checkout / ".git" / "index").read_bytes()
    assert _git(top, "rev-parse", "HEAD") == _git(checkout, "rev-parse", "HEAD~1")
    assert _git(top, "rev-parse", "--show-toplevel").strip() == os.fsencode(top)
    assert b"-version = 1\n+version = 2\n" in _git(top, "diff", "HEAD")
    assert b"new.py" in _git(top, "status", "--porcelain")
    _git(top, "commit", "-qam", "a recipe's")
    assert b"recipe" not in _git(checkout, "log", "--all", "--oneline")
    assert (checkout / ".git" / "index").read_bytes() == index
    assert b"new.py" in _git(checkout, "status", "--porcelain")


def test_the_same_tree_has_the_same_hash(checkout: Path) -> None:
    store, first = _make(checkout)
    os.utime(checkout / "package" / "code.py", (1, 1))
    (checkout / "package" / "__pycache__").mkdir()
    (checkout / "package" / "__pycache__" / "code.pyc").write_text("x")
    (checkout / "sweeps" / "s" / "sweep.json").write_text("{}")
    (checkout / "data" / "more.bin").write_text("x")
    _, two = _make(checkout)
    assert first == two
    assert len(list((checkout / "sweeps" / "s" / "code").iterdir())) == 1
    assert first.snapshot is not None
    assert not _has_changed(store, first.snapshot)
    (checkout / "run.sh").chmod(0o644)
    assert _has_changed(store, first.snapshot)
    _, three = _make(checkout)
    assert three.snapshot.hash != first.snapshot.hash


def test_secrets_large_and_deleted_files_are_not_kept(checkout: Path, tmp_path: Path) -> None:
    (checkout / "notes.txt").write_text("the key is canary-0815.")
    (checkout / "large.txt").write_text("x" * 1_000_001)
    (checkout / "run.sh").unlink()
    os.mkfifo(checkout / "pipe")
    store, made = _make(checkout, secrets=["canary-0815"])
    assert set(made.linked) == {"away", "notes.txt", "large.txt"}
    data = store.read(made.snapshot.archive)
    import gzip

    assert b"canary" not in gzip.decompress(data)
    top = _extract(store, made, tmp_path / "home")
    assert (top / "large.txt").is_symlink()
    assert (top / "large.txt").read_text() == "x" * 1_000_001
    assert not (top / "run.sh").exists()


@pytest.mark.parametrize("above", [".", ".."])
def test_a_store_that_holds_the_checkout_hides_no_code(
    checkout: Path, tmp_path: Path, above: str
) -> None:
    store = LocalStore(str(checkout / above))
    store.replace("other/sweep.json", b"{}")
    store.replace("s/state/x", b"")
    made = snapshot.make(SweepFolder(store, "s"), str(checkout))
    assert made.snapshot is not None
    assert not _has_changed(store, made.snapshot)
    (checkout / "package" / "code.py").write_text("version = 3\n")
    assert _has_changed(store, made.snapshot)
    top = _extract(store, made, tmp_path / "home")
    assert (top / "package" / "code.py").read_text() == "version = 1\n"
    assert not (top / "other").is_dir() or (top / "other").is_symlink()


@pytest.mark.parametrize("disk", ["project/disk", "disk"])
def test_a_tracked_folder_that_has_become_a_link(checkout: Path, tmp_path: Path, disk: str) -> None:
    (checkout / "package").rename(tmp_path / disk)
    (tmp_path / disk / "other").write_text("x")
    inside = disk.startswith("project")
    (checkout / "package").symlink_to("disk" if inside else tmp_path / disk)
    store, made = _make(checkout)
    assert made.snapshot is not None
    top = _extract(store, made, tmp_path / "home")
    assert (top / "package" / "code.py").read_text() == "version = 1\n"
    assert (top / "package" / "other").read_text() == "x"


def test_data_that_came_after_the_first_launch_is_there_at_the_next(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    (checkout / "data").rename(tmp_path / "data")
    store, made = _make(checkout)
    assert made.snapshot is not None
    top = _extract(store, made, tmp_path / "home")
    assert not (top / "data").exists()
    (tmp_path / "data").rename(checkout / "data")
    _, again = _make(checkout)
    assert again.snapshot == made.snapshot
    assert (top / "data" / "big.bin").read_text() == "big"


def test_environments_of_packages_and_our_own_files_are_not_copied(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git does not ignore them, and they would leave no room for the user's files."""
    home = checkout / "home"
    monkeypatch.setenv("SWEEPER_HOME", str(home))
    modules = (f".env3/m{number}.py" for number in range(2_000))
    for name in (".env3/pyvenv.cfg", *modules, "home/environments/x.json", "home/snapshots/y"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("")
    store, made = _make(checkout)
    assert made.snapshot is not None
    assert made.linked == ("away",)
    top = _extract(store, made, home)
    assert os.readlink(top / ".env3") == str(checkout / ".env3")
    assert os.readlink(top / "home") == str(home)
    assert not (top / "new.py").is_symlink()


def test_what_is_no_checkout_or_too_large_is_used_as_it_is(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").mkdir()
    _, made = _make(tmp_path / "plain")
    assert made == snapshot.CodeCopy(None, "not in a git checkout", in_checkout=False)
    _, made = _make(tmp_path / "plain", file=str(checkout / "run.sh"))
    assert made.snapshot is not None  # the recipe's file is in a checkout
    assert made.snapshot.cwd == str(tmp_path / "plain")
    monkeypatch.setattr(checkouts, "ALL_BYTES", 10)
    _, made = _make(checkout)
    assert made.snapshot is None
    assert "of code in" in str(made.why)


def test_what_git_does_not_say_in_time_does_not_pass_for_nothing(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No copy without the code is kept, and the checkout does not count as clean."""
    store, made = _make(checkout)
    assert made.snapshot is not None
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    real = shutil.which("git")
    slow.write_text(f'#!/bin/sh\ncase "$1" in ls-files|diff) exit 1;; esac\nexec {real} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    _, unlisted = _make(checkout)
    assert unlisted == snapshot.CodeCopy(None, f"git failed to list the files of {checkout}")
    assert _has_changed(store, made.snapshot)
    _, recorded = _collect(checkout)
    assert recorded["commit"]
    assert (recorded["dirty"], recorded["diff"], recorded["untracked"]) == (None, None, [])


def test_the_same_code_committed_and_launched_from_a_hook(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    store, made = _make(checkout)
    assert made.snapshot is not None
    top = _extract(store, made, tmp_path / "home")
    _git(checkout, "add", "new.py")
    _git(checkout, "commit", "-qm", "two")
    with monkeypatch.context() as hook:
        hook.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
        _, again = _make(checkout)
    assert again.snapshot.hash == made.snapshot.hash
    assert _git(top, "rev-parse", "HEAD") == _git(checkout, "rev-parse", "HEAD")
    assert not (tmp_path / "elsewhere").exists()


def test_many_extract_at_once(checkout: Path, tmp_path: Path) -> None:
    store, made = _make(checkout)
    copy: Any = made.snapshot
    assert copy is not None
    folder = Path(snapshot.extract(store, copy, str(tmp_path / "home")))
    folder.rename(f"{folder}.part")  # as after a kill
    seen: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: seen.append(snapshot.extract(store, copy, str(tmp_path / "home")))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert len(set(seen)) == 1
    assert Path(seen[0], "new.py").exists()


@pytest.mark.parametrize("damage", [b"", b"no gzip", None])
def test_a_damaged_archive_is_reported(
    checkout: Path, tmp_path: Path, damage: bytes | None
) -> None:
    store, made = _make(checkout)
    assert made.snapshot is not None
    if damage is None:  # complete, but of other code
        (checkout / "new.py").write_text("other = True\n")
        _, other = _make(checkout)
        damage = store.read(other.snapshot.archive)
    store.replace(made.snapshot.archive, damage)
    with pytest.raises(StoreError, match="code of this run is damaged"):
        snapshot.extract(store, made.snapshot, str(tmp_path / "home"))


def test_imports_move_to_the_copy(checkout: Path, tmp_path: Path) -> None:
    site = checkout / "data" / "site-packages"
    site.mkdir()
    store, made = _make(checkout)
    assert made.snapshot is not None
    top = snapshot.extract(store, made.snapshot, str(tmp_path / "home"))
    moved = bootstrap.move(str(checkout), top)
    assert moved(str(checkout)) == top
    assert moved(str(checkout / "package")) == f"{top}/package"
    assert moved(str(site)) == str(site)  # an environment is only linked
    assert moved(f"{checkout}-else") == f"{checkout}-else"
    assert moved("/nowhere") == "/nowhere"
    assert moved("") == ""
    program = f"""
import json, sys
from sweeper.recipe import bootstrap
finder = type(sys)("__editable___package_0_1_finder")
finder.MAPPING = {{"package": {str(checkout / "package")!r}}}
finder.NAMESPACES = {{"space": [{str(checkout)!r}]}}
sys.modules[finder.__name__] = finder
sys.path[:] = [{str(checkout)!r}, *sys.path, ""]
bootstrap.move_imports(bootstrap.move({str(checkout)!r}, {top!r}))
print(json.dumps([sys.path[0], sys.path[-1], finder.MAPPING, finder.NAMESPACES]))
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(answer.stdout) == [top, "", {"package": f"{top}/package"}, {"space": [top]}]


def _collect(root: Path) -> tuple[LocalStore, dict[str, Any]]:
    store = LocalStore(str(root / "sweeps"))
    recorded = provenance.collect(
        SweepFolder(store, "s"),
        cwd=str(root),
        python=sys.executable,
        secrets=["MY_SECRET"],
        code={"code": "h"},
    )
    return store, recorded


def test_provenance_has_the_command_line_without_secrets(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "canary-0815")
    program = tmp_path / "sweeper"
    program.write_text(f"""
import json, sys
from sweeper.recipe import provenance
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
folder = SweepFolder(LocalStore({str(tmp_path)!r}), "s")
about = {{"cwd": {str(checkout)!r}, "python": sys.executable, "secrets": ["MY_SECRET"]}}
print(json.dumps(provenance.collect(folder, code={{}}, **about)["command"]))
""")
    words = ["launch", "--api-key=1", "x=canary-0815"]
    answer = subprocess.run([sys.executable, program, *words], capture_output=True, check=True)
    assert json.loads(answer.stdout) == ["sweeper", "launch", "--api-key=***", "x=***"]


def test_provenance(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "canary-0815")
    (checkout / "package" / "code.py").write_text("key = 'canary-0815'\n")
    store, recorded = _collect(checkout)
    assert recorded["commit"] == _git(checkout, "rev-parse", "HEAD").decode().strip()
    assert recorded["dirty"]
    assert recorded["untracked"] == ["new.py (17 bytes)"]
    diff = store.read(recorded["diff"]["path"]).decode()
    assert diff.startswith(f"commit {recorded['commit']}\n\ndiff --git a/package/code.py")
    assert "+key = '***'" in diff
    assert recorded["packages"]["chz"]
    assert f"chz=={recorded['packages']['chz']}\n" in store.read(recorded["all_packages"]).decode()
    assert recorded["python"] == ".".join(map(str, sys.version_info[:3]))
    (checkout / "package" / "code.py").write_text("x = 1\n" * 200_000)
    store, recorded = _collect(checkout)
    assert not recorded["diff"]["whole"]
    assert "bytes more" in store.read(recorded["diff"]["path"]).decode()


def test_provenance_outside_a_checkout(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "sweeps"))
    recorded = provenance.collect(
        SweepFolder(store, "s"), cwd=str(tmp_path), python="/no/python", secrets=[], code={}
    )
    assert (recorded["commit"], recorded["dirty"], recorded["python"]) == (None, None, None)
    assert recorded["packages"] == {}


def test_command_lines_are_redacted_by_name_and_value() -> None:
    redactor = Redactor(["canary-0815"])
    given = "launch grid.yaml --api-key abc api_key=x env.WANDB_API_KEY=y max_tokens=5 lr=1e-4 "
    given += "--token=z --password --wait name=xcanary-0815x apiToken=q keys=2"
    wanted = (
        "launch grid.yaml --api-key *** api_key=*** env.WANDB_API_KEY=*** max_tokens=5 lr=1e-4 "
    )
    wanted += "--token=*** --password --wait name=x***x apiToken=*** keys=2"
    assert provenance.redact_command(given.split(), redactor) == wanted.split()
