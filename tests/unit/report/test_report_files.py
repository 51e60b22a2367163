"""Parquet for notebooks: every figure, with the types that notebooks count with."""

from decimal import Decimal

import pytest

from dlcloud.report.cost_columns import record_of
from dlcloud.report.files import write_parquet
from tests.unit.report.conftest import BILL, comparison, lines, quote

arro3 = pytest.importorskip("arro3.io")


def full():
    return lines(compared=[comparison()], overall=[comparison()], quoted=quote(), bill=BILL, peak=0.4)


def read(path):
    return arro3.read_parquet(path).read_all()


def test_every_figure_comes_back(tmp_path):
    records = [record_of(line) for line in full()]
    write_parquet(records, tmp_path / "a.parquet")
    rows = read(tmp_path / "a.parquet").to_struct_array().to_pylist()
    assert len(rows) == 2
    for row, record in zip(rows, records, strict=True):
        for name, value in record.items():
            expected = float(value) if isinstance(value, Decimal) else value
            assert row[name] == expected, name


def test_columns_without_values_have_the_types_they_would_have(tmp_path):
    whole = [record_of(line) for line in full()]
    bare = [record_of(line) for line in lines()]
    write_parquet(whole, tmp_path / "full.parquet")
    write_parquet(bare, tmp_path / "bare.parquet")
    types = [
        {field.name: str(field.type) for field in read(tmp_path / name).schema}
        for name in ("full.parquet", "bare.parquet")
    ]
    seconds = {name for name in types[0] if name.endswith("seconds")}
    differing = {name for name in types[0] if types[0][name] != types[1][name]}
    assert differing <= seconds
