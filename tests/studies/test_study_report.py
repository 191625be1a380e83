import html.parser
import math
import re
import sys
from dataclasses import replace

import pytest

from tensoralg.studies import (
    CellResult,
    CellStore,
    StudyFolderError,
    StudySpecification,
    write_report,
)
from tensoralg.studies.document import Document
from tensoralg.studies.summary import grid_labels, number, summarize

STUDY = StudySpecification(
    "recovery | <b>bold</b>", (4, 8), (2,), (3,), (100, 1000), (2.0,), (0, 1, 2, 3),
    ("moments", "em-truth"),
)  # fmt: skip


def invented(specification=STUDY):
    """Cells with known numbers: the error of the limit is 0.1, that of moments 0.1 to 0.4."""
    for key in specification.cells():
        if key.method == "em-truth":
            yield CellResult(key, "ok", 0.1, 0.1, 0.1, 0.001, 2.0, "x")
        else:
            gap = -0.5 if key.seed == 1 else 0.001
            yield CellResult(key, "ok", 0.1 * (key.seed + 1), 0.1, 0.1, gap, 1.0 + key.seed, "x")


def folder_of(path, cells, specification=STUDY):
    with CellStore(path, specification) as store:
        for cell in cells:
            store.append(cell)
    return path


def test_summaries_have_the_known_numbers():
    first, limit = summarize(STUDY, invented())[:2]
    assert (first.method, first.cells, first.failed, first.successes) == ("moments", 4, 0, 3)
    assert first.mean_error == pytest.approx(0.25)
    assert first.ratio == pytest.approx(2.5)
    assert first.seconds == pytest.approx(2.5)
    assert limit.ratio == 1.0


def test_failures_count_but_give_no_medians():
    cells = list(invented())
    cells[0] = CellResult(cells[0].key, "failed", seconds=99.0, message="no")
    cells[2] = replace(cells[2], status="not converged")
    first = summarize(STUDY, cells)[0]
    assert (first.cells, first.failed, first.not_converged, first.successes) == (4, 1, 1, 2)
    assert first.mean_error == pytest.approx(0.3)
    assert first.seconds == pytest.approx(3.0)


def test_the_ratio_needs_the_limit_on_the_same_seed():
    cells = [c for c in invented() if c.key.method == "moments" or c.key.seed == 3]
    assert summarize(STUDY, cells)[0].ratio == pytest.approx(4.0)
    cells = [c for c in invented() if c.key.method == "moments"]
    assert math.isnan(summarize(STUDY, cells)[0].ratio)


def test_cells_of_no_grid_point_are_passed_over():
    stray = replace(next(invented()), key=replace(STUDY.cells()[0], seed=77))
    assert summarize(STUDY, [stray])[0].cells == 0


def test_labels_say_what_varies():
    common, labels = grid_labels(STUDY)
    assert common == "r=2, m=3, sep=2"
    assert list(labels.values())[:2] == ["d=4, N=100", "d=4, N=1,000"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.01234, "0.0123"), (1.0, "1.00"), (12345.6, "12346"), (999.9, "1000"), (0.0, "0.00"),
        (1e-7, "1.00e-07"), (-0.5, "-0.500"), (math.inf, "–"), (2e9, "2.00e+09"), (100.0, "100"),
    ],
)  # fmt: skip
def test_numbers_in_tables(value, text):
    assert number(value) == text


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.images, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "img":
            self.images.append(dict(attributes)["src"])
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_report_has_tables_and_the_pictures_it_names(tmp_path):
    cells = list(invented())
    cells[0] = CellResult(cells[0].key, "failed", message="broke | <here>")
    page = write_report(folder_of(tmp_path, cells))
    markdown = (tmp_path / "report.md").read_text()
    parsed = Page(page.read_text())
    assert not parsed.open
    assert "b" not in parsed.tags, "the name is text, not markup"
    named = re.findall(r"\]\((\S+\.png)\)", markdown)
    assert parsed.images == named
    assert len(named) == 4
    for name in named:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert "32 of 32 cells finished" in markdown
    assert "Failed cells: 1" in markdown
    assert r"broke \| \<here\>" in markdown
    assert "seeds: 0, 1, 2, 3" in markdown
    row = next(line for line in markdown.splitlines() if line.startswith("| d=4, N=1,000, mom"))
    assert [cell.strip() for cell in row.split("|")[2:4]] == ["0.250", "2.50"]
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.parametrize("count", [0, 5])
def test_an_unfinished_study_is_reported_as_such(tmp_path, count):
    write_report(folder_of(tmp_path, list(invented())[:count]))
    assert f"{count} of 32 cells finished: the study is not" in (tmp_path / "report.md").read_text()


def test_a_study_in_which_everything_failed_is_reported(tmp_path):
    cells = [CellResult(key, "failed", message="no") for key in STUDY.cells()]
    write_report(folder_of(tmp_path, cells))
    assert "the first 20 of them" in (tmp_path / "report.md").read_text()


def test_without_matplotlib_the_report_comes_without_pictures(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    write_report(folder_of(tmp_path, invented()))
    text = (tmp_path / "report.md").read_text()
    assert r"pip install 'tensoralg\[plot\]'" in text
    assert ".png" not in text
    assert not list(tmp_path.glob("*.png"))


def test_a_picture_that_leaves_something_out_says_so(tmp_path):
    values = {name: getattr(STUDY, name) for name in STUDY.__dataclass_fields__}
    study = StudySpecification(**values | {"dimension": tuple(range(3, 12))})
    write_report(folder_of(tmp_path, invented(study), study))
    markdown = (tmp_path / "report.md").read_text()
    assert "The first 16 of 18 grid points." in markdown
    assert "The first 4 of 9 panels." in markdown


def test_a_torn_line_does_not_stop_a_report(tmp_path):
    folder_of(tmp_path, list(invented())[:3])
    with open(tmp_path / "cells.jsonl", "a") as stream:
        stream.write('{"dimension": 4, "co')
    write_report(tmp_path)
    assert "3 of 32 cells" in (tmp_path / "report.md").read_text()


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(StudyFolderError, match="holds no study"):
        write_report(tmp_path)


def test_drawing_leaves_the_users_matplotlib_alone(tmp_path):
    import matplotlib

    before = matplotlib.rcParams["backend"]
    write_report(folder_of(tmp_path, invented()))
    assert matplotlib.rcParams["backend"] == before
    assert "matplotlib.pyplot" not in sys.modules or not matplotlib.pyplot.get_fignums()


def test_text_is_escaped_in_both_renderings():
    report = Document("a < b")
    report.paragraph("x_1 * y | `code_x|y` <script>")
    report.bullets(["[link](there)"])
    assert r"x\_1 \* y \| `code_x\|y` \<script\>" in report.to_markdown()
    assert r"- \[link\](there)" in report.to_markdown()
    assert "<code>code_x|y</code> &lt;script&gt;" in report.to_html()
    assert "<title>a &lt; b</title>" in report.to_html()
