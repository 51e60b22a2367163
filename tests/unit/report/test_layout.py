"""Tables within a terminal: no number or name is broken, optional columns appear where there is room."""

from dlcloud.report.page import page
from dlcloud.report.table import NARROWEST, WIDEST, Format, Report, Section, fit, render, terminal_width
from dlcloud.resources.texts import template

NAMES = ("instance_type_of_the_account", "quantization vgg16 batch 1", "1.2345 (1.2001–1.2777)")


def test_cells_wrap_between_words_and_nothing_else():
    titles, row = fit([("type", "case", "figure"), NAMES], 60)
    assert row[0] == NAMES[0]
    assert [cell.replace("\n", " ") for cell in row] == list(NAMES)
    assert max(len(line) for cell in (*titles, *row) for line in cell.splitlines()) == len(NAMES[0])


def test_names_break_after_hyphens_only_where_spaces_are_not_enough():
    table = [("run", "what"), ("a-long-name-of-a-run-0001", "some words and more words")]
    assert fit(table, 40)[1][0] == "a-long-name-of-a-run-0001"
    assert max(len(line) for line in fit(table, 14)[1][0].splitlines()) < len(table[1][0])


def test_paths_of_a_whole_line_break_after_slashes():
    path = "(/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id,"
    cell = fit([("check", "detail"), ("image", f"ami-1234 {path} x86_64)")], 80)[1][1]
    assert max(map(len, cell.splitlines())) <= 73
    assert cell.replace("\n", "").replace(" ", "") == f"ami-1234{path}x86_64)"


def test_optional_columns_are_shown_where_there_is_room():
    section = Section(
        heading="", titles=("a", "b", "c"), rows=[("x" * 50, "y" * 40, "z" * 40)], optional=(1, 2)
    )
    report = Report(command="test", records=[], sections=[section], empty="")
    shown = {width: render(report, Format.TABLE, width).splitlines()[0].split() for width in (80, 120, 200)}
    assert shown == {80: ["a"], 120: ["a", "b"], 200: ["a", "b", "c"]}
    assert "y" not in render(report, Format.MARKDOWN)


def test_the_width_is_that_of_the_terminal_within_limits(monkeypatch):
    for columns, width in (("20", NARROWEST), ("120", 120), ("999", WIDEST), ("", NARROWEST)):
        monkeypatch.setenv("COLUMNS", columns)
        assert terminal_width() == width


def test_a_mark_stays_with_the_word_before_it():
    assert fit([["setting"], ["plain, of many words ~"]], 12) == [["setting"], ["plain, of\nmany words ~"]]
    assert fit([["setting"], ["plain ~"]], 7) == [["setting"], ["plain ~"]]


def test_a_mark_stays_with_its_word_on_the_page_too():
    section = Section(heading="", titles=("setting",), rows=[("plain ~",)], notes=["~ plain: not stable"])
    report = Report(command="x", records=[], sections=[section], empty="")
    assert "plain\N{NO-BREAK SPACE}~</td>" in page(
        template("report.html"), "", report, [], title="t", subtitle="s"
    )
