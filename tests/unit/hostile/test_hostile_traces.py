"""Availability traces that no one recorded: read or refused with their line, and simulated without an error.

DLCLOUD_FUZZ sets the number of traces (default 150), DLCLOUD_FUZZ_SEED the seed, which a failure names.
"""

import os
from collections import Counter
from random import Random

import pytest

from dlcloud.model.errors import RecipeError
from tests.unit.hostile.trace_readers import live_through
from tests.unit.hostile.trace_texts import JSON_WINDOW, hostile_trace

TRACES = int(os.environ.get("DLCLOUD_FUZZ", "150"))
SEED = int(os.environ.get("DLCLOUD_FUZZ_SEED") or Random().randrange(10_000))


@pytest.mark.timeout(7200)
def test_any_trace_is_simulated_or_refused_with_its_line(record_property):
    counts, messages = Counter(), []
    for number in range(TRACES):
        file, text = hostile_trace(Random(SEED * 1_000_003 + number))
        try:
            live_through(text, file)
            counts["read"] += 1
        except RecipeError as error:
            messages.append(error.message)
        except Exception as error:
            raise AssertionError(f"DLCLOUD_FUZZ_SEED={SEED}, trace {number}: {error!r}\n{text}") from error
    wrong = [message[:300] for message in messages if not message.startswith("t.") or len(message) > 300]
    assert not wrong, f"DLCLOUD_FUZZ_SEED={SEED}"
    record_property("traces", {**counts, "refused": len(messages)})


def test_a_separator_before_a_count_is_blank_space():
    """Found by tests/fuzz: int() takes less for blank than strip() does."""
    live_through("0,\x1f5", "t.csv")


def test_free_spot_instances_leave_the_ratio_to_the_bound_open():
    live_through(JSON_WINDOW.replace('"prices": [1, 1, 0.5, 1, 2.5]', '"prices": [0, 0, 0, 0, 0]'), "t.json")
    live_through('{"metadata": {"gap_seconds": 1e6}, "data": [9], "prices": [0]}', "t.json")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("t.json", JSON_WINDOW.replace("600", "9" * 400)),
        ("t.json", JSON_WINDOW.replace("600", "9" * 5000)),
        ("t.json", JSON_WINDOW.replace("600", "1e308")),
        ("t.json", JSON_WINDOW.replace("600", "5e-324")),
        ("t.json", JSON_WINDOW.replace("2.5", "1e300")),
        ("t.json", JSON_WINDOW.replace("[1, 0,", f"[{'9' * 4000}, 0,")),
        ("t.csv", f"0,{'9' * 5000}"),
        ("t.csv", "1e300,1"),
        ("t.jsonl", f'[0, "add", {{"nodes": ["a"], "duration": {"9" * 400}}}]'),
        ("t.jsonl", f'[{"9" * 5000}, "add", {{"nodes": ["a"]}}]'),
        ("t.jsonl", '[0, "add", {"nodes": ["a"], "duration": 0}]'),
        ("t.jsonl", '[0, "' + "x" * 5000 + '", {}]'),
    ],
)
def test_a_number_beyond_any_trace_is_refused(file, text):
    with pytest.raises(RecipeError) as caught:
        live_through(text, file)
    assert caught.value.message.startswith(f"{file}:1: ")
    assert len(caught.value.message) < 200
