"""Output of instances on a terminal: colours stay, what else controls a terminal does not reach it."""

import codecs
import re
from collections.abc import Callable
from typing import IO

_PARTS = re.compile("(\x1b\\[[0-9;:]*m)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_UNFINISHED = re.compile("\x1b(\\[[0-9;:]{0,60})?\\Z")


class TerminalFilter:
    """Removes control sequences other than colours from UTF-8 that arrives in pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    def filter(self, piece: bytes) -> bytes:
        """Return a piece without control sequences; an unfinished one waits for the next piece."""
        text = self._pending + self._decoder.decode(piece)
        unfinished = _UNFINISHED.search(text)
        self._pending = unfinished[0] if unfinished else ""
        text = text[: len(text) - len(self._pending)]
        return _PARTS.sub(lambda part: part[1] or "", text).encode()


def writer_to(stream: IO[bytes]) -> Callable[[bytes], None]:
    """Return what writes an instance's output to a stream at once: unchanged, unless it is a terminal."""
    terminal = TerminalFilter() if stream.isatty() else None

    def write(piece: bytes) -> None:
        stream.write(piece if terminal is None else terminal.filter(piece))
        stream.flush()

    return write
