"""Whose a cluster is: a digest of the caller who launched it, and the home that it was launched from."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

OWNER_TAG = "dlcloud:owner"
"""A digest of the ARN of who launched it."""
HOME_TAG = "dlcloud:home"
"""The id of the home that it was launched from."""
DIGITS = 12
_RANDOM_SESSION = re.compile(
    r"(?<=:assumed-role/)([^/]+)/(botocore-session-\d+|aws-[a-z-]*\d+|\d+|i-[0-9a-f]+)$"
)
"""Sessions whose names programs draw anew at each login. Source: botocore, AssumeRoleCredentialFetcher."""


class Ownership(StrEnum):
    """How a cluster relates to a caller."""

    THIS_HOME = "this home"
    OTHER_HOME = "another home of yours"
    OTHER_OWNER = "another owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A caller and a home; either is empty where it is not known."""

    digest: str = ""
    home: str = ""

    @property
    def tags(self) -> dict[str, str]:
        return {OWNER_TAG: self.digest, HOME_TAG: self.home}

    def relation(self, other: "Owner") -> Ownership:
        """Return whose something is that `other` made, as this owner sees it.

        What carries no owner is another owner's, so that no one ends it by accident.
        """
        if other.home and other.home == self.home:
            return Ownership.THIS_HOME
        if other.digest and other.digest == self.digest:
            return Ownership.OTHER_HOME
        return Ownership.OTHER_OWNER

    def describe(self, other: "Owner") -> str:
        """Return whose something is, for a message."""
        relation = self.relation(other)
        if relation is Ownership.OTHER_OWNER:
            return f"another owner ({other.digest or 'unknown'}, home {other.home or 'unknown'})"
        return f"another home of yours ({other.home})" if relation is Ownership.OTHER_HOME else str(relation)


def owner_digest(arn: str) -> str:
    """Return the digest of a caller's ARN; the next login with the same role has the same."""
    return hashlib.sha256(_RANDOM_SESSION.sub(r"\1", arn).encode()).hexdigest()[:DIGITS]


def owner_of(tags: Mapping[str, str]) -> Owner:
    """Return who made what carries these tags."""
    return Owner(digest=tags.get(OWNER_TAG, ""), home=tags.get(HOME_TAG, ""))
