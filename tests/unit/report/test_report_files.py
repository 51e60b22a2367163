"""Reports in files: replaced whole, within a terminal's columns, and as Parquet for notebooks."""

import os
import stat
from decimal import Decimal

import pytest

from dlcloud.model.cluster import Leftover
from dlcloud.model.errors import RecipeError
from dlcloud.report.account import PricedLeftover, leftovers_report
from dlcloud.report.cost_columns import record_of
from dlcloud.report.files import report_file, write_parquet
from dlcloud.report.table import NARROWEST, WIDEST, Format, render, terminal_width
from tests.fakes.clock import START
from tests.fakes.samples import instance
from tests.unit.report.conftest import BILL, comparison, lines, quote


def write(path, text="new"):
    with report_file(path) as draft:
        draft.write_text(text)


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old and longer")
    write(path)
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [*tmp_path.iterdir()] == [path]


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    """As /dev/null does, which root could replace."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write(path)
    assert os.read(reader, 10) == b"new"
    os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert [*tmp_path.iterdir()] == [path]


def test_a_folder_is_no_report(tmp_path):
    with pytest.raises(RecipeError, match="cannot be written"):
        write(tmp_path)


def test_the_width_is_that_of_the_terminal_within_limits(monkeypatch):
    for columns, width in (("20", NARROWEST), ("120", 120), ("999", WIDEST), ("", NARROWEST)):
        monkeypatch.setenv("COLUMNS", columns)
        assert terminal_width() == width


def test_ids_of_ec2_stay_whole_at_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = {
        "instance": "i-bf48a39b280ae523d",
        "fleet": "fleet-1e6828d5-1ea6-35c5-a274-c6a07fbefa33",
        "launch-template": "lt-42582855eed2eb063",
        "security-group": "sg-a0686f4e352863185",
    }
    left = [
        PricedLeftover(
            leftover=Leftover(
                kind=kind,
                resource_id=name,
                cluster_id="929afeb15a0e",
                name="",
                region="us-west-2",
                instance=instance() if kind == "instance" else None,
            ),
            hourly_usd=None,
        )
        for kind, name in names.items()
    ]
    text = render(leftovers_report(left, now=START), Format.TABLE)
    assert max(map(len, text.splitlines())) <= 80
    assert all(name in text for kind, name in names.items() if kind != "fleet")


def full():
    return lines(compared=[comparison()], overall=[comparison()], quoted=quote(), bill=BILL, peak=0.4)


def read(path):
    return pytest.importorskip("arro3.io").read_parquet(path).read_all()


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
