"""What an instance prints reaches a terminal as text and colours, and a file as it is."""

import io

import pytest

from dlcloud.app.terminal.console import line_of
from dlcloud.app.terminal.screen import TerminalFilter, writer_to
from dlcloud.cli.main import report_error
from dlcloud.model.errors import InstanceError
from dlcloud.model.events import Warned
from dlcloud.report.table import Format, Report, Section, render

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[1;1H\x9b31m\u202eok\x00"


class Stream(io.BytesIO):
    """A stream that may be a terminal."""

    def __init__(self, *, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("plain größer 日本\n\t|\r50 %", "plain größer 日本\n\t|\r50 %"),
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        (EVIL, "]0;owned[2J[1;1H31mok"),
        ("\x1b[6n\x1bc\x1bPq\x1b\\", "[6ncPq\\"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_terminal_gets_text_and_colours_only(sent, shown, size):
    stream = Stream(terminal=True)
    write = writer_to(stream)
    content = sent.encode()
    for start in range(0, len(content), size):
        write(content[start : start + size])
    assert stream.getvalue().decode() == shown


def test_a_file_gets_every_byte():
    stream = Stream(terminal=False)
    writer_to(stream)(EVIL.encode() + b"\xff")
    assert stream.getvalue() == EVIL.encode() + b"\xff"


def test_a_sequence_without_an_end_is_not_kept_for_ever():
    terminal = TerminalFilter()
    for _ in range(100):
        terminal.filter(b"\x1b[" + b"1" * 1000)
    assert len(terminal._pending) < 100


def test_events_and_errors_cannot_control_the_terminal(capsys):
    assert "\x1b" not in line_of(Warned(message=EVIL))
    report_error(InstanceError(EVIL, EVIL), command="up", arguments=["up"])
    assert not set(capsys.readouterr().err) & set("\x07\x00\x9b\u202e")


@pytest.mark.parametrize("form", Format)
def test_tables_cannot_control_the_terminal_or_a_spreadsheet(form):
    section = Section(heading=EVIL, titles=("a",), rows=[(EVIL,)], notes=(EVIL,))
    records = [{"a": EVIL, "b": "=cmd|' /C calc'!A0"}]
    text = render(Report(command="x", records=records, sections=[section], empty=""), form)
    assert not set(text) & set("\x07\x00\x9b\x1b\u202e")
    assert form is not Format.CSV or ",'=cmd" in text
