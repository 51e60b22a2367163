"""Tables within a terminal: no number or name is broken, optional columns appear where there is room."""

from dlcloud.report.table import NARROWEST, WIDEST, terminal_width


def test_the_width_is_that_of_the_terminal_within_limits(monkeypatch):
    for columns, width in (("20", NARROWEST), ("120", 120), ("999", WIDEST), ("", NARROWEST)):
        monkeypatch.setenv("COLUMNS", columns)
        assert terminal_width() == width
