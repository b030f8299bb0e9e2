"""A stand-in for `nvidia-smi`: a script that prints what the real one does, for devices that do not
exist. `use` chooses the devices that other users' programs occupy."""

import os
import uuid
from collections.abc import Collection
from pathlib import Path


class StandInGpus:
    """`count` devices. Put `folder` in front of PATH."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        folder.mkdir()
        # New names, because the locks on devices are shared by the whole machine.
        self.names = [f"GPU-{uuid.uuid4()}" for _ in range(count)]
        self._apps = folder / "apps"
        self.use(())
        rows = "".join(f"{number}, {name}\n" for number, name in enumerate(self.names))
        (folder / "rows").write_text(rows)
        script = folder / "nvidia-smi"
        script.write_text(
            "#!/bin/sh\n"
            'case "$1 $2" in\n'
            f'"--query-gpu=index,uuid --format=csv,noheader") cat {folder}/rows ;;\n'
            f'"--query-compute-apps=gpu_uuid,pid --format=csv,noheader") cat {self._apps} ;;\n'
            '*) echo "ERROR: Option $1 is not recognized." >&2; exit 1 ;;\n'
            "esac\n"
        )
        script.chmod(0o755)

    def use(self, numbers: Collection[int]) -> None:
        """Show other users' programs on exactly these devices."""
        self._apps.write_text("".join(f"{self.names[number]}, 4242\n" for number in numbers))

    @property
    def path(self) -> str:
        """Return PATH with the stand-in first."""
        return f"{self.folder}{os.pathsep}{os.environ['PATH']}"
