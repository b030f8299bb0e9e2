"""The report in a real browser: it draws, responds to clicks, and runs no foreign script."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import written

from sweeper import analysis

pytestmark = pytest.mark.e2e


def opened(browser: Any, page: Path, *, dark: bool = False) -> tuple[str, list[str]]:
    """Return the page's document after its scripts, and the messages of the console."""
    with browser.opened(page, 1200, dark=dark) as shown:
        return shown.evaluate("document.documentElement.outerHTML"), shown.errors


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sweeps")
    written.grid_of_means(root, {(1e-4, 8): 0.9, (1e-3, 8): 0.2, (1e-2, 8): 1.1})
    return Path(analysis.analyze(str(root), "demo", pictures=False).html_path)


@pytest.fixture
def page(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the report for one test."""
    return Path(shutil.copy(made, tmp_path))


@pytest.mark.parametrize("dark", [True, False], ids=["dark", "light"])
def test_the_curves_are_drawn_without_a_word_on_the_console(browser: Any, page: Path, dark: bool):
    document, console = opened(browser, page, dark=dark)
    assert console == []
    assert 'class="drawn"' in document
    # Charts: two of curves, one of an axis, and what a run takes.
    assert len(re.findall(r'class="chart js-plotly-plot"', document)) >= 3
    # Three cells: their runs, their means and their bands in each of two plots.
    lines = re.findall(r'class="js-line"[^>]*d="M[^"]+L', document)
    assert len(lines) >= 12
    # A logarithmic axis has complete numbers as labels, not digits without their power of ten.
    marks = [
        [float(text) for text in re.findall(r'class="ytick"><text[^>]*>([^<]*)<', chart)]
        for chart in document.split('data-figure="')[1:]
    ]
    decades = [values for values in marks if values and max(values) > 5 * min(values) > 0]
    assert decades and all(values == sorted(set(values)) for values in marks)
    ours = "#4ba6dd" if dark else "#0072b2"
    red, green, blue = (int(ours[i : i + 2], 16) for i in (1, 3, 5))
    assert f"stroke: rgb({red}, {green}, {blue})" in document


SOON = """
const drawn = () => document.documentElement.classList.contains("drawn");
const soon = (condition, then) => {
  if (condition()) then();
  else setTimeout(() => soon(condition, then), 5);
};
"""
QUIET = """
// Whoever draws several charts begins the next as soon as one is drawn: when none was for a while,
// all are.
let plots = 0;
const listen = () => {
  for (const chart of document.querySelectorAll(".chart")) {
    for (const name of ["plotly_afterplot", "plotly_react"]) chart.on(name, () => { plots += 1; });
  }
};
const quiet = (then) => {
  const before = plots;
  setTimeout(() => (plots === before ? then() : quiet(then)), 1500);
};
"""
CLICK_EVERY_RUN = f"""
<script>{SOON}
soon(drawn, () => {{
  let opened = 0, written = 0, logs = 0, twice = 0;
  for (const button of document.querySelectorAll("button[data-run]")) {{
    button.click();
    opened += document.getElementById("run").open;
    written += document.querySelectorAll("#run-rollouts pre").length;
    logs += document.querySelectorAll("#run-log pre").length;
    const told = [...document.querySelectorAll("#run-facts dt")].map((one) => one.textContent);
    twice += told.length - new Set(told).size;
    document.getElementById("run").close();
  }}
  document.title = [opened, written, logs, twice].join(" | ");
}});
</script></body>"""


@pytest.mark.parametrize("sweep", ["hostile", "hostile-rl"])
def test_what_is_hostile_stays_text(browser: Any, tmp_path: Path, sweep: str):
    make = written.hostile if sweep == "hostile" else written.hostile_rollouts
    make(tmp_path / "sweeps")
    report = analysis.analyze(str(tmp_path / "sweeps"), sweep, pictures=False)
    # A script that ran would fail, since `boom` is undefined, and the policy would report a script
    # that it blocked. Either message appears on the console.
    document, console = opened(browser, Path(report.html_path))
    assert console == []
    assert 'class="drawn"' in document
    assert not re.search(r"<img[^>]+src=.?x", document)
    # Also in the dialogs of runs, without the policy: `evaluated` fails on an error of `boom`.
    opened_, texts, logs, twice = evaluated(browser, Path(report.html_path), CLICK_EVERY_RUN)
    assert int(opened_) == len(report.runs)
    assert (int(texts) > 0) == (sweep == "hostile-rl")
    assert int(logs) == (len(written.HOSTILE) if sweep == "hostile" else 0)
    assert int(twice) == 0  # no two facts have the same label


def test_the_policy_stops_a_foreign_script(browser: Any, page: Path):
    marked = page.read_text().replace("</main>", "<script>document.title = 'ran'</script></main>")
    page.write_text(marked)
    document, console = opened(browser, page)
    assert "<title>ran" not in document
    assert any("Content Security Policy" in line for line in console)


def evaluated(browser: Any, page: Path, script: str, width: int = 1200) -> list[str]:
    """Return what a script, added to the page without its policy, puts into the title."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    page.write_text(text.replace("</body>", script))
    with browser.opened(page, width) as shown:
        shown.wait("document.title.includes(' | ')")
        assert shown.errors == []
        return shown.evaluate("document.title").split(" | ")


LOOK_BESIDE = f"""
<script>{SOON}
const answers = () => [...document.querySelectorAll(".beside .answers details")];
soon(() => answers().length > 0, () => {{
  const [solves, fails] = document.querySelectorAll(".beside select");
  const said = [solves.selectedOptions[0].text, fails.selectedOptions[0].text];
  said.push(document.querySelector(".beside [role=status]").textContent, answers().length);
  said.push(document.querySelectorAll(".beside pre").length);  // none before somebody looks
  answers()[0].open = true;
  const texts = () => [...document.querySelectorAll(".beside article pre")]
    .map((one) => one.textContent);
  soon(() => texts().length > 0, () => {{
    said.push(...texts());
    [solves.value, fails.value] = [fails.value, solves.value];
    solves.dispatchEvent(new Event("change"));
    said.push(document.querySelector(".beside [role=status]").textContent);
    document.title = said.join(" | ");
  }});
}});
</script></body>"""


def test_what_one_solves_and_another_does_not_is_read_side_by_side(browser: Any, tmp_path: Path):
    metric = {"name": "test/accuracy", "goal": "maximize", "at": "last"}
    sweep = written.Written(tmp_path / "sweeps", "beside", {"lr": [1, 2]}, metric)
    evil = "<img src=x onerror=boom()>"
    for lr, right in ((1, {1}), (2, {0, 2, 3, *range(5, 20)})):
        run = sweep.run({"lr": lr}, None, [{"step": 1, "test/accuracy": len(right) / 20}])
        lines = [
            {"item": f"q{item}", "task": "test", "prompt": f"{evil} {item}?", "score": score}
            | {"text": f"{evil} lr={lr} says {item}, {'right' if score else 'wrong'}"}
            for item in range(20)
            for score in ([1, 0] if item == 3 and lr == 2 else [int(item in right)])
        ]
        path = sweep.folder / "runs" / f"{run}.1" / "items.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sweep.save()
    report = analysis.analyze(str(tmp_path / "sweeps"), "beside", pictures=False)
    page = Path(report.html_path)
    assert "lr=2 says" not in page.read_text()  # packed until it is shown
    best, other, count, shown, before, own_text, their, back = evaluated(browser, page, LOOK_BESIDE)
    assert (best, other) == ("lr=2", "lr=1")
    assert (count, shown, before) == ("18 questions, of which 8 are here", "8", "0")
    assert (own_text, their) == (f"{evil} lr=2 says 0, right", f"{evil} lr=1 says 0, wrong")
    assert back == "1 question"
    alone = report.document["items"][0]["alone"]
    assert [(pair["cell"], pair["other"], pair["count"]) for pair in alone] == [
        ("lr=2", "lr=1", 18),
        ("lr=1", "lr=2", 1),
    ]


CLICKS = (
    f"<script>{SOON}{QUIET}"
    + """
const headers = [...document.querySelectorAll("#cells-table th button")];
const header = headers.find((button) => button.textContent === "mean");
const order = () => [...document.querySelectorAll("#cells-table td.set:nth-child(2)")]
  .map((cell) => cell.textContent).join(" ");
const said = [order()];
header.click();
said.push(order());
header.click();
said.push(order());
const filter = document.querySelector("[data-filter=runs-table]");
filter.value = "lr=0.001 seed=1";
filter.dispatchEvent(new Event("input"));
const left = () => document.querySelectorAll("#runs-table tbody tr:not([hidden])").length;
said.push(left());
for (const asked of ["lora_rank=8", "learning_rate=0.01 seed=2", "rank=80", "lora_rank=16"]) {
  filter.value = asked;
  filter.dispatchEvent(new Event("input"));
  said.push(left());
}
// Whoever moves the slider before all is drawn stops that, and has it drawn anew.
new MutationObserver((_, seen) => {
  seen.disconnect();
  document.getElementById("smooth").dispatchEvent(new Event("input"));
}).observe(document.querySelector(".chart"), { childList: true });
soon(drawn, () => {
  listen();
  const curves = document.getElementById("curves");
  const chart = curves.querySelector(".chart");
  const toggle = curves.querySelector(".legend button");
  toggle.click();
  said.push(toggle.getAttribute("aria-pressed"));
  curves.querySelector("[data-scale=log]").click();
  const slider = document.getElementById("smooth");
  slider.value = 2;
  slider.dispatchEvent(new Event("input"));
  said.push(curves.querySelector("[data-scale=log]").getAttribute("aria-pressed"));
  quiet(() => {
    said.push(chart.data.filter((trace) => trace.visible).length);
    said.push(chart.layout.yaxis.type);
    const training = curves.querySelectorAll(".chart")[1].data;
    const role = (name) => training.find((trace) => trace.meta.role === name);
    const changed = (name) => role(name).y === role(name).meta.smooth[1];
    said.push(["run", "band", "mean"].every(changed));
    const range = [Math.log10(0.15), Math.log10(0.65)];
    Plotly.relayout(chart, { "yaxis.range": range }).then(() => {
      said.push([...chart.querySelectorAll(".ytick text")].map((one) => one.textContent).join(" "));
      document.title = said.join(" | ");
    });
  });
});
</script></body>"""
)


def test_clicks_sort_the_table_and_switch_the_curves(browser: Any, page: Path):
    answers = evaluated(browser, page, CLICKS)
    # Sorted by rank, then by mean, upwards and downwards; one run left; one of three cells (three
    # traces each: runs, band, mean) off.
    # Numbers are spelled as in names of runs; `rank=80` does not match `rank=8`.
    counts = ("9", "1", "0", "0")
    upwards, downwards = "0.001 0.0001 0.01", "0.01 0.0001 0.001"
    switched = ("false", "true", "6", "log", "true")
    closer = "0.2 0.3 0.4 0.5 0.6"
    assert answers == [upwards, upwards, downwards, "1", *counts, *switched, closer]


PAPER = (
    f"<script>{SOON}{QUIET}"
    + """
const said = [];
const look = () => {
  const chart = document.querySelector("#curves .chart");
  const open = [...document.querySelectorAll("details")].every((details) => details.open);
  said.push(chart.querySelector(".main-svg").getAttribute("width"), open, chart.offsetWidth);
};
soon(drawn, () => {
  listen();
  look();
  dispatchEvent(new Event("beforeprint"));
  kept.forEach((query) => query.dispatchEvent(new Event("change")));  // dark turns light
  quiet(() => {
    look();
    dispatchEvent(new Event("afterprint"));
    quiet(() => { look(); document.title = said.join(" | "); });
  });
});
</script></body>"""
)


KEEP = """
<head><script>
const kept = [], real = matchMedia;
matchMedia = (query) => { kept.push(real(query)); return kept.at(-1); };
</script>"""


def test_paper_gets_curves_of_its_width_and_all_details(browser: Any, page: Path):
    page.write_text(page.read_text().replace("<head>", KEEP, 1))
    answers = evaluated(browser, page, PAPER)
    screen, paper, after = answers[:3], answers[3:6], answers[6:]
    assert screen == [screen[2], "false", screen[2]] and int(screen[0]) > 1000
    assert paper[:2] == ["680", "true"]
    assert after == screen


WIDTHS = """
<script>
const region = document.querySelector(".scroll");
document.title = [region.scrollWidth, region.clientWidth, document.body.scrollWidth].join(" | ");
</script></body>"""


def test_the_table_fits_a_wide_window_and_scrolls_by_itself_in_a_narrow_one(
    browser: Any, tmp_path: Path
):
    means = {(1e-4, 8): -13.51, (1e-3, 8): -13.52, (1e-2, 8): -11.2}
    written.grid_of_means(tmp_path / "sweeps", means)
    report = analysis.analyze(str(tmp_path / "sweeps"), "demo", pictures=False)
    page = Path(report.html_path)
    narrow = page.with_name("narrow.html")
    narrow.write_text(page.read_text())
    needs, has, _ = map(int, evaluated(browser, page, WIDTHS, 1400))
    assert needs == has
    needs, has, body = map(int, evaluated(browser, narrow, WIDTHS, 500))
    assert needs > has and body <= 500
