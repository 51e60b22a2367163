"""Tables and lists in Markdown."""

from collections.abc import Iterable, Iterator, Sequence


def table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table; nothing without rows."""
    if not rows:
        return
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        cells = (" ".join(cell.split()).replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"
    yield ""


def listing(rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield a list of names: the values of each, and what it means. A narrow screen shows it whole."""
    for name, values, meaning in rows:
        about = f" ({values})" if values else ""
        yield " ".join(f"- `{name}`{about}{f': {meaning}' if meaning else ''}".split())
    yield ""
