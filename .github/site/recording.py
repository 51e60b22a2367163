# /// script
# requires-python = ">=3.11"
# dependencies = ["pyte"]
# ///
"""Record a command in a terminal, and draw the recording as an animated SVG.

    uv run .github/site/recording.py quickstart.cast docs/recording.svg -- dlcloud up quickstart
    uv run .github/site/recording.py quickstart.cast docs/recording.svg    # only draws

The cast is asciinema's format, version 2. A pause is cut to two seconds, a screen of text that comes in a
burst stays for four, and the last one for eight.
"""

import json
import os
import pty
import re
import sys
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

import pyte

COLUMNS, ROWS = 100, 26
LONGEST_PAUSE_S = 2.0
READING_S = 4.0
LAST_S = 8.0
FRAME_S = 0.7
COLUMN, ROW = 8.4, 18
COLORS = {
    "default": "#d7dde4", "black": "#4a5568", "red": "#ff8a80", "green": "#a5d6a7", "brown": "#ffe082",
    "blue": "#9fa8da", "magenta": "#ce93d8", "cyan": "#80deea", "white": "#ffffff",
}  # fmt: skip


def record(path: Path, command: list[str]) -> int:
    """Run a command in a terminal of a fixed size and write what it prints, with its times."""
    os.environ |= {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
    began = time.monotonic()
    with path.open("w", encoding="utf-8") as cast:
        print(json.dumps({"version": 2, "width": COLUMNS, "height": ROWS}), file=cast)
        print(json.dumps([0.0, "o", f"$ {' '.join(command)}\r\n"]), file=cast)

        def read(descriptor: int) -> bytes:
            data = os.read(descriptor, 65536)
            print(json.dumps([time.monotonic() - began, "o", data.decode("utf-8", "replace")]), file=cast)
            return data

        return os.waitstatus_to_exitcode(pty.spawn(command, read))


def frames(path: Path) -> Iterator[tuple[float, tuple[str, ...]]]:
    """Yield the time of each screen that differs, and its lines as SVG."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    _, *events = map(json.loads, path.read_text("utf-8").splitlines())
    now = last = shown = moved = 0.0
    printed = 0  # lines since the last frame
    before: tuple[str, ...] = ()
    for index, (at, _, text) in enumerate(events):
        now += min(at - last, max(0.0, moved + LONGEST_PAUSE_S - now))
        last = at
        still = _without_clocks(screen)
        for piece in text.splitlines(keepends=True):
            stream.feed(piece)
            printed += piece.endswith("\n")
            if is_full := printed >= ROWS - 2:
                moved = now
            is_last = index in {0, len(events) - 1}
            if now - shown < FRAME_S and not is_full and not is_last:
                continue
            lines = tuple(_line(screen, row) for row in range(ROWS))
            if lines != before:
                yield now, lines
                before, shown = lines, now
                printed = 0
                now += READING_S * is_full
        moved = moved if _without_clocks(screen) == still else now


def _without_clocks(screen: pyte.Screen) -> list[str]:
    """Return the text of a screen without spinners and clocks, which change while nothing happens."""
    return [re.sub(r"[\u2800-\u28ff]|\d+:\d\d:\d\d", "", line) for line in screen.display]


def _line(screen: pyte.Screen, row: int) -> str:
    spans: list[tuple[tuple[str, bool], str]] = []
    for column in range(COLUMNS):
        character = screen.buffer[row][column]
        style = (COLORS.get(character.fg, COLORS["default"]), character.bold)
        if spans and spans[-1][0] == style:
            spans[-1] = (style, spans[-1][1] + character.data)
        else:
            spans.append((style, character.data))
    spans[-1] = (spans[-1][0], spans[-1][1].rstrip())
    weight = {False: "", True: ' font-weight="600"'}
    return "".join(
        f'<tspan fill="{color}"{weight[bold]}>{escape(text)}</tspan>' for (color, bold), text in spans if text
    )


def draw(path: Path, target: Path) -> None:
    """Write the recording as an SVG: one group for each screen, shown in turn."""
    found = list(frames(path))
    length = found[-1][0] + LAST_S
    width, height = COLUMNS * COLUMN + 32, ROWS * ROW + 32
    texts = {
        line: index for index, line in enumerate(dict.fromkeys(line for _, lines in found for line in lines))
    }
    defined = "".join(f'<text id="t{index}" x="16">{line}</text>' for line, index in texts.items() if line)
    style, groups = [], []
    for index, (at, lines) in enumerate(found):
        end = found[index + 1][0] if index + 1 < len(found) else length
        first, until = 100 * at / length, 100 * end / length
        style.append(
            f"@keyframes f{index}{{0%,{first:.3f}%{{visibility:hidden}}{first + 0.001:.3f}%,{until:.3f}%"
            f"{{visibility:visible}}{min(until + 0.001, 100):.3f}%,100%{{visibility:hidden}}}}"
            f".f{index}{{visibility:hidden;animation:f{index} {length:.1f}s step-end infinite}}"
        )
        rows = "".join(
            f'<use href="#t{texts[line]}" y="{30 + row * ROW}"/>' for row, line in enumerate(lines) if line
        )
        groups.append(f'<g class="f{index}">{rows}</g>')
    shown = f".f{len(found) - 1}{{visibility:visible}}"
    still = f"@media (prefers-reduced-motion){{g{{animation:none!important}}{shown}}}"
    target.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        f'aria-label="A terminal recording" font-family="ui-monospace, Menlo, Consolas, monospace" '
        f'font-size="14" xml:space="preserve"><style>text{{white-space:pre}}{"".join(style)}{still}</style>'
        f"<defs>{defined}</defs>"
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#1b2430"/>{"".join(groups)}</svg>\n',
        "utf-8",
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case [path, target, "--", *command]:
            if status := record(Path(path), command):
                sys.exit(status)
            draw(Path(path), Path(target))
        case [path, target]:
            draw(Path(path), Path(target))
        case _:
            sys.exit(__doc__)
