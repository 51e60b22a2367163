"""What a use case prints and asks: results on stdout, all else on stderr; output of instances, made safe."""

import codecs
import re
import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from dlcloud.report.table import Report

Show = Callable[["Report"], None]
"""Takes the result of a use case."""


def say(text: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Print a line immediately."""
    print(text, end=end, file=sys.stderr if err else sys.stdout, flush=True)


def clear() -> None:
    """Clear the terminal; nothing where stdout is none."""
    if sys.stdout.isatty():
        sys.stdout.write("\033[2J\033[1;1H")


def agrees(question: str) -> bool:
    """Ask until the answer is y or n; Enter means n.

    Raises:
        KeyboardInterrupt: stdin has ended.
    """
    while True:
        say(f"{question} [y/N]: ", end="", err=True)
        line = sys.stdin.readline()
        if not line:
            say(err=True)
            raise KeyboardInterrupt
        answer = line.strip().lower()
        if answer in {"y", "yes", "n", "no", ""}:
            return answer in {"y", "yes"}
        say("Error: invalid input", err=True)


def confirm(question: str) -> None:
    """Ask, and end the command unless the answer is yes.

    Raises:
        KeyboardInterrupt: The answer is no, or stdin has ended.
    """
    if not agrees(question):
        raise KeyboardInterrupt


def printing(output: str) -> Show:
    """Return what prints a result on stdout in a format."""
    from dlcloud.report.table import Format, render  # noqa: PLC0415  most of what prints has no table

    return lambda report: say(render(report, Format(output)))


_PARTS = re.compile("(\x1b\\[[0-9;:]*m)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_UNFINISHED = re.compile("\x1b(\\[[0-9;:]{0,60})?\\Z")


_OVERWRITTEN = re.compile("\r+\n?")
_RETURNS = re.compile("\r+\\Z")


class TerminalFilter:
    """Removes control sequences other than colours from UTF-8 that arrives in pieces.

    With `shows_overwritten`, a carriage return begins a new line: it hides nothing that was printed before.
    """

    def __init__(self, *, shows_overwritten: bool = False) -> None:
        self._shows_overwritten = shows_overwritten
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    def filter(self, piece: bytes) -> bytes:
        """Return a piece without control sequences; an unfinished one waits for the next piece."""
        text = self._pending + self._decoder.decode(piece)
        unfinished = _UNFINISHED.search(text)
        if self._shows_overwritten and not unfinished:
            unfinished = _RETURNS.search(text)
        self._pending = unfinished[0] if unfinished else ""
        text = text[: len(text) - len(self._pending)]
        if self._shows_overwritten:
            text = _OVERWRITTEN.sub("\n", text)
        return _PARTS.sub(lambda part: part[1] or "", text).encode()


def writer_to(stream: IO[bytes], *, shows_overwritten: bool = False) -> Callable[[bytes], None]:
    """Return what writes an instance's output to a stream immediately: unchanged, unless it is a terminal."""
    terminal = TerminalFilter(shows_overwritten=shows_overwritten) if stream.isatty() else None

    def write(piece: bytes) -> None:
        stream.write(piece if terminal is None else terminal.filter(piece))
        stream.flush()

    return write
