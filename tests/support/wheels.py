"""Makes wheels of installed distributions, for tests that install without a network. Each has the
distribution's files, by its own record, as in its original wheel."""

import re
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path


def wheels(folder: Path, names: Iterable[str]) -> Path:
    """Put a wheel of each of these distributions, `name==version` or a name, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        _pack(folder, distribution(name.partition("==")[0]))
    return folder


def made(folder: Path, name: str, version: str, **files: str) -> Path:
    """Put a wheel of a generated package into `folder`; `files` are the texts of its modules."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    texts = {f"{module}.py": text for module, text in files.items()}
    texts[f"{about}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    texts[f"{about}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    texts[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in texts)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for path, text in texts.items():
            packed.writestr(path, text)
    return wheel


def _pack(folder: Path, distribution: Distribution) -> None:
    tags = re.findall(r"(?m)^Tag: *(\S+)", distribution.read_text("WHEEL") or "")
    parts = [sorted({tag.split("-")[at] for tag in tags}) for at in range(3)]
    called = re.sub(r"[-_.]+", "_", distribution.metadata["Name"])
    tag = "-".join(".".join(part) for part in parts)
    files = [
        file for file in distribution.files or () if file.suffix != ".pyc" and file.parts[0] != ".."
    ]
    with zipfile.ZipFile(folder / f"{called}-{distribution.version}-{tag}.whl", "w") as packed:
        for file in files:
            packed.write(str(file.locate()), file.as_posix())
