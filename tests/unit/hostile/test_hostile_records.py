"""Records that a hostile instance sends: all that reads them goes on, and prints plain text and valid JSON.

DLCLOUD_FUZZ sets the number of lines (default 600), DLCLOUD_FUZZ_SEED the seed, which a failure names.
"""

import json
import os
from random import Random

import pytest

from dlcloud.analysis.result import parse_record
from dlcloud.benchmarks.harness.schema import Measurement
from dlcloud.model.untrusted import parse_json, printable
from dlcloud.store.database import Database
from tests.unit.hostile.record_lines import ESCAPE, hostile_line
from tests.unit.hostile.record_readers import CONTROL, read_all

LINES = int(os.environ.get("DLCLOUD_FUZZ", "600"))
SEED = int(os.environ.get("DLCLOUD_FUZZ_SEED") or Random().randrange(10_000))
OF_ONE_RUN = 12


@pytest.mark.timeout(7200)
def test_readers_of_records_take_whatever_an_instance_sends(tmp_path):
    database = Database(tmp_path / "store.sqlite")
    database.write("PRAGMA synchronous = OFF")
    for number in range(LINES // OF_ONE_RUN):
        random = Random(SEED * 1_000_003 + number)
        lines = [hostile_line(random) for _ in range(OF_ONE_RUN)]
        try:
            texts = read_all(database, f"r-{number}", lines)
        except Exception as error:
            raise AssertionError(f"DLCLOUD_FUZZ_SEED={SEED}, run {number}: {error!r}") from error
        unsafe = [text for text in texts if CONTROL.search(text)]
        assert not unsafe, f"DLCLOUD_FUZZ_SEED={SEED}, run {number}"
    database.close()


def test_an_interval_whose_ends_are_swapped_is_none(tmp_path):
    """It was the logarithm of a negative number where a winner is looked for."""
    values = {"value": 10.5, "low": 10.0, "high": -1, "unit": "images/s", "samples": 9}
    records = [
        {"record": "result", "case": "c", "setting": setting, "metrics": {"throughput": values}}
        for setting in ("a", "b")
    ]
    assert Measurement(**values).interval is None
    database = Database(tmp_path / "store.sqlite")
    assert read_all(database, "r-1", [f"{json.dumps(record)}\n".encode() for record in records])
    database.close()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, None) for text in ("NaN", "-Infinity", "1e999", "1e300", "9" * 5000)),
        ("12", 12),
        ("-0.5", -0.5),
        ('"\\u001b[2J"', "\ufffd[2J"),
        ('"\\ud800"', "\ufffd"),
        ('{"\\u0000": ["a\\nb\\tc"]}', {"\ufffd": ["a\nb\tc"]}),
    ],
)
def test_json_of_an_instance_is_finite_and_printable(text, value):
    assert parse_json(text) == value


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"a": ' * 50_000, "{'a': 1}"])
def test_text_that_is_no_json_is_an_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
    assert parse_record(text) is None


def test_escapes_are_not_printable():
    assert not CONTROL.search(printable(ESCAPE))
    assert printable("größer\n\t日本") == "größer\n\t日本"
