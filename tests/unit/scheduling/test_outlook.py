"""What a controller expects of a deadline: stored, read back, and described."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dlcloud.scheduling.outlook import Outlook, describe_outlook, describe_probability, read_outlook

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
OUTLOOK = Outlook(
    at=NOW,
    deadline=NOW + timedelta(hours=5, minutes=30),
    time_left_s=19_800,
    work_left_s=7200,
    probability=0.976,
    is_measured=True,
    reason="spot suffices",
    targets={"spot a": 2},
    launch={"spot a": 1},
    drain=("i-1",),
)


def test_an_outlook_is_read_as_it_was_written():
    assert read_outlook(OUTLOOK.to_text()) == OUTLOOK


@pytest.mark.parametrize("text", [None, "", "refused", "[]", "{}", '{"at": 5}', "null"])
def test_any_other_text_is_no_outlook(text):
    assert read_outlook(text) is None


def test_the_line_for_people_has_time_probability_and_reason():
    line = describe_outlook(OUTLOOK, NOW + timedelta(seconds=20))
    first, second = line.splitlines()
    assert first == "deadline 2026-11-22 17:30 UTC, in 5 h 29 min: holds with probability 0.98"
    assert second == "spot suffices; as of 20 s ago"
    assumed = describe_outlook(replace(OUTLOOK, is_measured=False), NOW + timedelta(hours=6))
    assert "passed 30 min 0 s ago" in assumed
    assert "at an assumed speed" in assumed


def test_a_probability_is_never_shown_as_certain():
    assert [describe_probability(p) for p in (0.0, 0.5, 1.0)] == ["below 0.01", "0.50", "above 0.99"]
