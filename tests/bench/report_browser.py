"""Measures how soon Chromium shows the first plot, and all plots, of a report of many runs.

    python tests/bench/report_browser.py [--runs 1000] [--steps 1000] [--rounds 3]

Wall time from the start of loading the file (nothing cached, a window of 1280 by 900) to the first
figure that plotly has drawn, and to the last; and the work of the page's thread by then. Medians.
"""

import statistics
import sys
import tempfile
from pathlib import Path

MARKS = "performance.getEntriesByType('mark').map((mark) => [mark.name, mark.startTime])"


def main() -> None:
    here = Path(__file__).parent
    sys.path[:0] = [str(here), str(here.parent / "support")]
    from chromium import Browser
    from report import generate, parse_options

    from sweeper import analysis

    given = parse_options(__doc__)
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        generate(root / "sweeps", given.runs, given.steps)
        report = analysis.analyze(str(root / "sweeps"), "bench", out=root / "out", pictures=False)
        page = Path(report.html_path)
        taken: dict[str, list[float]] = {}
        for _ in range(given.rounds):
            with Browser() as browser, browser.opened(page) as opened:
                for name, at in opened.evaluate(MARKS):
                    taken.setdefault(name, []).append(at / 1000)
                metrics = opened.call("Performance.getMetrics")["metrics"]
                worked = {metric["name"]: metric["value"] for metric in metrics}["TaskDuration"]
                taken.setdefault("worked", []).append(worked)
        size = page.stat().st_size / 1e6
    metrics = ", ".join(f"{name} {statistics.median(times):.2f} s" for name, times in taken.items())
    print(
        f"{given.runs} runs x {given.steps} steps, {size:.1f} MB, {given.rounds} rounds: {metrics}"
    )


if __name__ == "__main__":
    main()
