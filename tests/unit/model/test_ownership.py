"""Whose clusters are: one's own, of another home of one's own, or another person's."""

import pytest

from dlcloud.model.account import Owner, Ownership, owner_digest, owner_of

ANNA = Owner(digest="a" * 12, home="1" * 12)


@pytest.mark.parametrize(
    ("other", "relation"),
    [
        (ANNA, Ownership.THIS_HOME),
        (Owner(digest="b" * 12, home="1" * 12), Ownership.THIS_HOME),
        (Owner(digest="a" * 12, home="2" * 12), Ownership.OTHER_HOME),
        (Owner(digest="b" * 12, home="2" * 12), Ownership.OTHER_OWNER),
        (Owner(), Ownership.OTHER_OWNER),
    ],
)
def test_the_home_counts_first_then_the_caller(other, relation):
    assert ANNA.relation(other) is relation
    assert owner_of({**other.tags, "Name": "x"}) == other
    assert relation is Ownership.THIS_HOME or other.home in ANNA.describe(other)


@pytest.mark.parametrize("session", ["botocore-session-1700000000", "1700000000123", "i-0123456789abcdef0"])
def test_a_session_that_a_program_names_does_not_change_the_digest(session):
    role = "arn:aws:sts::123456789012:assumed-role/Trainer"
    assert owner_digest(f"{role}/{session}") == owner_digest(f"{role}/botocore-session-1")
    assert owner_digest(f"{role}/anna@example.com") != owner_digest(f"{role}/ben@example.com")
