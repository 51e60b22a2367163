"""Reports as files: replaced whole; Parquet for notebooks, with the extra `parquet`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dlcloud.model.errors import RecipeError, install_hint
from dlcloud.report.cost_columns import RECORD
from dlcloud.report.table import Cell
from dlcloud.system.files import replace_file

READABLE = 0o644
_US_PER_S = 1_000_000


@contextmanager
def report_file(path: Path) -> Iterator[Path]:
    """Yield a draft of a file that anyone may read, which takes the place of `path` when the block ends.

    A device or a pipe is written to, never replaced: root could replace /dev/null.

    Raises:
        RecipeError: It cannot be written; `path` is as it was.
    """
    try:
        if not path.exists() or path.is_file() or path.is_dir():
            with replace_file(path, mode=READABLE) as draft:
                yield draft
        else:
            with TemporaryDirectory(prefix="dlcloud-report-") as folder:
                yield (draft := Path(folder) / "draft")
                path.write_bytes(draft.read_bytes())
    except OSError as error:
        raise RecipeError(f"{path}: cannot be written: {error.strerror}", "name another file") from error


def write_parquet(records: Sequence[Mapping[str, Cell]], path: Path) -> None:
    """Write records; times become timestamps in UTC, money becomes float64, which notebooks count with.

    Raises:
        RecipeError: The library that writes Parquet is not installed.
    """
    try:
        from arro3.core import Table  # noqa: PLC0415  33 MB that only this needs
        from arro3.io import write_parquet as write  # noqa: PLC0415
    except ImportError as error:
        raise RecipeError("Parquet is written by arro3-io, which is missing", HINT) from error
    names = dict.fromkeys(name for record in records for name in record)
    columns = {name: _column(name, [record.get(name) for record in records]) for name in names}
    write(Table.from_pydict(columns), str(path), compression="zstd(3)")


HINT = install_hint("parquet")


# What a column without any value would hold, so that files of different stores have the same types.
_KINDS = {column.key: column.kind for column in RECORD}


def _column(name: str, values: Sequence[Cell]) -> Any:  # noqa: ANN401  an array of a library that may be missing
    from arro3.core import Array, DataType  # noqa: PLC0415

    kinds = {type(value) for value in values if value is not None} or {_KINDS.get(name, float)}
    if kinds == {bool}:
        return Array(list(values), DataType.bool())
    if kinds == {int}:
        return Array(list(values), DataType.int64())
    if kinds <= {int, float, Decimal}:
        numbers = [float(value) if isinstance(value, int | float | Decimal) else None for value in values]
        return Array(numbers, DataType.float64())
    if kinds == {datetime}:
        since = [
            None if not isinstance(value, datetime) else round(value.timestamp() * _US_PER_S)
            for value in values
        ]
        return Array(since, DataType.int64()).cast(DataType.timestamp("us", tz="UTC"))
    return Array([None if value is None else str(value) for value in values], DataType.utf8())
