"""Availability traces in a folder, as windows."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from dlcloud.model.errors import RecipeError
from dlcloud.scheduling.simulation.formats import ENDINGS, Meaning, read_trace
from dlcloud.scheduling.simulation.trace import PoolTrace, Window

LARGEST_BYTES = 64 * 1024 * 1024
"""A longer file is no trace of one pool."""


def load_windows(folder: Path, *, pooled: bool = False, meaning: Meaning | None = None) -> list[Window]:
    """Return the windows in a folder: a file is one, or, pooled, the files of one name in its folders.

    Args:
        folder: It, and the folders in it, have the files; those of other endings are passed over.
        pooled: Each folder is a pool, and its files are windows of the same times as their namesakes.
        meaning: What the values of JSON files mean that do not say it.

    Raises:
        RecipeError: There is no trace, or one has a fault, which is named with its line.
    """
    files = _trace_files(folder)
    if not pooled:
        return [
            Window(name=_name(file, folder), pools=(_read(file, file.parent.name, meaning),))
            for file in files
        ]
    by_name: dict[str, list[PoolTrace]] = {}
    for file in files:
        by_name.setdefault(file.name, []).append(_read(file, file.parent.name, meaning))
    return [Window(name=name, pools=tuple(by_name[name])) for name in sorted(by_name, key=_in_number_order)]


def _trace_files(folder: Path) -> Sequence[Path]:
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise RecipeError(f"{folder}: no such folder", "name a folder with traces, or --generate SEED")
    files = [path for path in folder.rglob("*") if path.suffix[1:].lower() in ENDINGS and path.is_file()]
    if not files:
        raise RecipeError(f"{folder}: no trace in it", f"traces end in {', '.join(ENDINGS)}")
    return sorted(files, key=lambda path: (str(path.parent), *_in_number_order(path.name)))


def _in_number_order(name: str) -> tuple[int, str]:
    stem = name.partition(".")[0]
    return (int(stem) if stem.isascii() and stem.isdecimal() else 0, name)


def _name(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix() if file != folder else file.name


def _read(file: Path, pool: str, meaning: Meaning | None) -> PoolTrace:
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise RecipeError(f"{file}: larger than {LARGEST_BYTES // 1024**2} MiB: not a trace")
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{file}: not a trace: no UTF-8 text", "docs/deadlines.md lists the formats"
        ) from error
    except OSError as error:
        raise RecipeError(f"{file}: cannot be read: {error.strerror}") from error
    return read_trace(text, str(file), pool=pool, meaning=meaning)


def scale_counts(windows: Iterable[Window], capacity: int) -> list[Window]:
    """Return windows in which each instance of a trace stands for `capacity` instances."""
    return [
        Window(name=window.name, pools=tuple(pool.scaled(capacity) for pool in window.pools))
        for window in windows
    ]
