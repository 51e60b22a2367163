"""An account of AWS: how to log in to it, who owns the clusters in it, and which plan it is on.

Several people and several homes share an account. A cluster carries a digest of who launched it and the id of
the home: no owner terminates another's by accident.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

OWNER_TAG = "dlcloud:owner"
"""A digest of the ARN of who launched it."""
HOME_TAG = "dlcloud:home"
"""The id of the home that it was launched from."""
DIGITS = 12
_RANDOM_SESSION = re.compile(
    r"(?<=:assumed-role/)([^/]+)/(botocore-session-\d+|aws-[a-z-]*\d+|\d+|i-[0-9a-f]+)$"
)
"""Sessions whose names programs draw again at each login. Source: botocore, AssumeRoleCredentialFetcher."""
ACCOUNT_PLAN_REGION = "us-east-1"
"""Where AWS answers for accounts. Source: botocore's endpoints of freetier, which are of one region."""
UPGRADE = f"aws freetier upgrade-account-plan --region {ACCOUNT_PLAN_REGION} --account-plan-type PAID"
"""Source: botocore's model of freetier, UpgradeAccountPlan."""
UPGRADE_HINT = f"upgrade the account to AWS's Paid plan: {UPGRADE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How to log in to AWS: with a profile of the AWS CLI, or its default, and by a role if there is one.

    Args:
        aws_profile: A profile of `~/.aws/config`; empty for what the environment says.
        role: The ARN of a role to assume.
        external_id: What the role's owner asks for in addition to the credentials.
        session_name: The session's name in the account's records; empty for a generated one.
        mfa_serial: The ARN or number of the MFA device whose code the role asks for.
        role_minutes: How long a session of the role is valid; 0 for STS's own, an hour.
        endpoints: URLs of private endpoints by service, as botocore names services; AWS's own for the others.
    """

    aws_profile: str = ""
    role: str = ""
    external_id: str = ""
    session_name: str = ""
    mfa_serial: str = ""
    role_minutes: int = 0
    endpoints: Mapping[str, str] = field(default_factory=dict)


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
        """Return the owner of something that `other` made, as this owner sees it.

        What carries no owner is another owner's, so that no one ends it by accident.
        """
        if other.home and other.home == self.home:
            return Ownership.THIS_HOME
        if other.digest and other.digest == self.digest:
            return Ownership.OTHER_HOME
        return Ownership.OTHER_OWNER

    def describe(self, other: "Owner") -> str:
        """Return the owner, for a message."""
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


class AccountPlan(StrEnum):
    """The plan of an account. Source: AWS Free Tier API reference, GetAccountPlanState."""

    FREE = "FREE"
    PAID = "PAID"
