"""Updates `docs/report.png`, a picture of the first screen of a report: `make picture`.

It launches the quickstart for real, on the local engine, and opens the report in Chromium.
"""

import base64
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from chromium import Browser

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "report.png"
WIDTH = 1280
BELOW = 26
"""Pixels shown of the page below the verdict."""

END = "document.querySelector('section.verdict').getBoundingClientRect().bottom + scrollY"


def main() -> None:
    program = str(Path(sys.executable).parent / "sweeper")
    with tempfile.TemporaryDirectory(prefix="picture-") as made:
        sweeps, report = Path(made, "sweeps"), Path(made, "report")
        env = {**os.environ, "SWEEPER_HOME": str(Path(made, "home"))}
        root = ["--root", str(sweeps)]
        grid = ["launch", "grids/quickstart.yaml", "launch.backend=local", "--wait", *root]
        try:
            subprocess.run([program, *grid], cwd=ROOT, env=env, check=True)
        finally:
            subprocess.run([program, "engine", "stop"], cwd=ROOT, env=env, check=False)
        analyze = ["analyze", "quickstart", "--out", str(report), *root]
        subprocess.run([program, *analyze], cwd=ROOT, env=env, check=True)
        with Browser() as browser, browser.opened(report / "report.html", width=WIDTH) as page:
            height = float(page.evaluate(END)) + BELOW
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
            picture = page.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        PICTURE.write_bytes(base64.b64decode(picture["data"]))


if __name__ == "__main__":
    main()
