"""All files of a report make the same statements and give the same advice."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import written

from sweeper import analysis
from sweeper.cli import main

pytestmark = pytest.mark.e2e


def texts(report: Any) -> tuple[str, str]:
    """Return the page and the Markdown as plain text."""
    page = re.sub(
        r"<script.*?</script>|<[^>]+>", "", Path(report.html_path).read_text(), flags=re.S
    )
    return page, re.sub(r"\\(.)", r"\1", Path(report.files["report.md"]).read_text())


def test_both_files_say_the_same_of_shared_seeds_and_why_they_are_less_certain(tmp_path: Path):
    cells = [({"lr": lr}, [lr + d for d in (-0.1, 0.0, 0.1)]) for lr in (1, 2, 3, 4, 5)]
    unlike = ({"lr": 0.4}, [0.5, 0.3, 0.4])  # its seeds rank differently
    written.measured(tmp_path, [unlike, *cells])
    report = analysis.analyze(str(tmp_path), "demo")
    assert report.document["verdict"]["kind"] == "clear"
    (second,) = [row for row in report.document["cells"] if row["cell"] == "lr=1"]
    assert second["told_apart"] and second["paired"]["p"] > 0.05
    for text in texts(report):
        assert "Intervals and p are corrected for all pairs of cells" in text
        assert "this table is less certain than the verdict." in text
        assert "each interval for itself" not in text


def test_a_report_of_two_sweeps_leaves_the_reports_of_each_alone(tmp_path: Path):
    for name in ("one", "two"):
        written.measured(tmp_path, [({"lr": 1}, [0.5, 0.6]), ({"lr": 2}, [0.9, 1.0])], name=name)
    page = Path(analysis.analyze(str(tmp_path), "one", pictures=False).json_path)
    joint = Path(analysis.analyze(str(tmp_path), ["one", "two"], pictures=False).json_path)
    assert json.loads(page.read_text())["sweep"] == "one"
    assert json.loads(joint.read_text())["sweep"] == "one + two"
    assert joint == page.parent / "with-two" / "report.json"


def test_a_joint_report_of_folders_has_its_own_place_too(tmp_path: Path):
    for name in ("a", "b/c"):
        for lr in (1, 2):
            folder = tmp_path / name / f"lr{lr}"
            folder.mkdir(parents=True)
            (folder / "config.json").write_text(json.dumps({"lr": lr}))
            (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": lr}) + "\n")
    names = [str(tmp_path / "a"), str(tmp_path / "b/c")]
    report = analysis.analyze(str(tmp_path), names, "loss", pictures=False)
    assert Path(report.html_path).parent.parent == tmp_path / "a" / "report"


def test_the_next_grid_says_what_to_do_with_it_and_has_one_title(tmp_path: Path):
    grid = "recipe: sft\ngrid: {lr: [1, 2, 4]} # my note\nseeds: 2\n"
    cells = [({"lr": lr}, [1.0 / lr, 1.01 / lr]) for lr in (1, 2, 4)]
    written.measured(tmp_path, cells, grid=grid)
    first = analysis.analyze(str(tmp_path), "demo")
    text = Path(first.files["next.yaml"]).read_text()
    assert "copy it over grids/demo.yaml" in first.verdict
    for shown in texts(first):
        assert "copy it over grids/demo.yaml" in shown
    written.measured(tmp_path / "again", cells, grid=text)
    second = analysis.analyze(str(tmp_path / "again"), "demo", pictures=False)
    again = Path(second.files["next.yaml"]).read_text()
    assert again.count("# next.yaml") == text.count("# next.yaml") == 1
    assert "# my note" in again


def test_the_next_grid_spells_numbers_as_the_report_does(tmp_path: Path):
    """Names of runs use the text in the grid, so another spelling would change them."""
    grid = "recipe: sft\ngrid: {lr: [1e-3, 3e-3]}\nseeds: 2\n"
    cells = [({"lr": lr}, [1.0 / lr, 1.01 / lr]) for lr in (1e-3, 3e-3)]
    written.measured(tmp_path, cells, grid=grid)
    report = analysis.analyze(str(tmp_path), "demo", pictures=False)
    assert "9e-3" in report.verdict
    assert "lr: [1e-3, 3e-3, 9e-3]" in Path(report.files["next.yaml"]).read_text()


def test_where_nothing_is_to_be_done_both_files_say_so(tmp_path: Path):
    cells = [({"lr": lr}, [abs(lr - 3) + d for d in (1.0, 1.1, 1.2)]) for lr in range(1, 6)]
    written.measured(tmp_path, cells)
    report = analysis.analyze(str(tmp_path), "demo")
    if not report.document["verdict"]["next"]:
        for text in texts(report):
            assert "No follow-up suggested." in text
    else:
        pytest.fail(f"steps: {report.document['verdict']['next']}")


def test_by_takes_one_setting_and_never_silently_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    written.grid_of_means(tmp_path, {(1e-4, 8): 0.9, (1e-3, 16): 0.2})
    words = ["analyze", "demo", "--root", str(tmp_path), "--by", "lora_rank"]
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--by", "learning_rate"])
    assert stopped.value.code == 2
    assert (
        "--by may be given only once: use --by lora_rank,learning_rate" in capsys.readouterr().err
    )


def test_values_of_blocks_keep_their_types_in_json(tmp_path: Path):
    means = {(1e-4, 8): 0.9, (1e-3, 8): 0.5, (1e-4, 16): 0.7, (1e-3, 16): 0.2, (1e-2, 16): 0.1}
    written.grid_of_means(tmp_path, means | {(1e-2, 32): 0.3})
    report = analysis.analyze(str(tmp_path), "demo", by="lora_rank", pictures=False)
    rows = report.document["blocks"]["rows"]
    assert sorted(row["value"] for row in rows) == [8, 16, 32]


def test_the_place_of_the_best_values_spells_them_as_the_names_of_cells_do(tmp_path: Path):
    # The names of these cells spell 3e-4 as 0.0003.
    rates, ranks = (3e-4, 1e-3, 3e-2), (8, 16, 32)
    written.grid_of_means(tmp_path, {(lr, rank): rank / 16 + lr for lr in rates for rank in ranks})
    for by, place in (
        ("learning_rate", "lora_rank: 8 is best in 3 of 3 learning_rate values."),
        ("lora_rank", "learning_rate: 0.0003 is best in 3 of 3 lora_rank values."),
    ):
        report = analysis.analyze(str(tmp_path), "demo", by=by, pictures=False)
        assert place in [finding["text"] for finding in report.document["findings"]]


def test_an_end_is_doubted_for_one_reason_on_the_whole_page(tmp_path: Path):
    """With one run per cell the noise is unknown, so nothing is within it."""
    written.measured(tmp_path, [({"lr": lr}, [1.0 / lr]) for lr in (1, 2, 3)])
    report = analysis.analyze(str(tmp_path), "demo")
    for text in texts(report):
        assert "Inside the grid?" in text and "noise not known" in text
        assert "within the noise" not in text and "beyond the noise:" not in text


def test_a_better_end_of_two_values_is_advice_with_a_grid(tmp_path: Path):
    grid = "recipe: sft\ngrid: {width: [32, 128]}\nseeds: 3\n"
    cells = [({"width": width}, [64 / width + d for d in (0.0, 0.01, 0.02)]) for width in (32, 128)]
    written.measured(tmp_path, cells, axes=("width",), grid=grid)
    report = analysis.analyze(str(tmp_path), "demo")
    assert "width: [32, 128, 512]" in Path(report.files["next.yaml"]).read_text()
    for text in texts(report):
        assert "Extend width beyond 128" in text
        assert "within the noise" not in text and "No follow-up" not in text


ALIKE = [
    True,
    "true",
    None,
    "null",
    "",
    " ",
    "a b",
    "a  b",
    '"true"',
    1,
    "1",
    1.5,
    "1.5",
    "not set",
]


def test_values_that_are_not_equal_never_look_equal(tmp_path: Path):
    sweep = written.Written(tmp_path, axes={"v": ALIKE})
    for number, value in enumerate(ALIKE):
        for seed in (0, 1):
            rows = [{"step": 1, "test/nll": number + seed / 10}]
            sweep.run({"v": value}, seed, rows, cell=f"v={number}", config={"v": value})
    sweep.save()
    report = analysis.analyze(str(tmp_path), "demo")
    page = Path(report.html_path).read_text()
    table = page[page.index('id="cells-table"') :].partition("</table>")[0]
    shown = re.findall(r'class="set"[^>]*>([^<]*)<', table)
    browser = [re.sub(r" +", " ", text).strip() for text in shown]
    assert len(set(browser)) == len(ALIKE) == len(shown)
    markdown = Path(report.files["report.md"]).read_text()
    rows = re.findall(r"^\| \d+ \| (.*?) \|", markdown, flags=re.M)
    assert len({re.sub(r" +", " ", row) for row in rows}) == len(ALIKE)


def test_prompts_that_begin_alike_look_different_in_tables(tmp_path: Path):
    start = "You are a helpful assistant that solves problems of arithmetic "
    prompts = [f"{start}{how} and nothing else." for how in ("step by step", "at once", "aloud")]
    cells = [({"prompt": prompt}, [n, n + 0.1]) for n, prompt in enumerate(prompts)]
    written.measured(tmp_path, cells, axes=("prompt",))
    page = Path(analysis.analyze(str(tmp_path), "demo", pictures=False).html_path).read_text()
    table = page[page.index('id="cells-table"') :].partition("</table>")[0]
    shown = re.findall(r'class="set" title="([^"]*)">([^<]*)<', table)
    assert {whole for whole, _ in shown} == set(prompts)
    assert len({text[:24] for _, text in shown}) == 3


def test_characters_that_turn_the_direction_act_in_no_file(tmp_path: Path):
    evil = "abc\u202edef\u200b"
    cells = [({"v": evil}, [0.1, 0.2]), ({"v": "abcdef"}, [0.5, 0.6])]
    written.measured(tmp_path, cells, axes=("v",), grid=f"# {evil}\nrecipe: sft\n")
    report = analysis.analyze(str(tmp_path), "demo")
    import base64
    import zlib

    page = Path(report.html_path).read_text()
    packed = re.findall(r'<script type="text/plain" id="data">(.*?)</script>', page)
    data = zlib.decompress(base64.b64decode(packed[0])).decode()
    for text in (page, data, Path(report.files["report.md"]).read_text()):
        assert "\u202e" not in text and "\u200b" not in text
    assert r"abc\u202edef" in page and json.loads(data)


def test_a_value_has_one_spelling_on_a_page(tmp_path: Path):
    sweep = written.Written(tmp_path, axes={"learning_rate": [3e-2, 9e-4]})
    for rate, text in ((3e-2, "3e-2"), (9e-4, "0.0009")):
        for seed in range(3):
            rows = [{"step": 1, "test/nll": rate + seed / 1e6}]
            sweep.run({"learning_rate": rate}, seed, rows, cell=f"lr={text}")
    sweep.save()
    report = analysis.analyze(str(tmp_path), "demo")
    for text in texts(report):
        assert "0.0009" in text and "3e-2" in text
        assert "9e-4" not in text and "0.03 " not in text
