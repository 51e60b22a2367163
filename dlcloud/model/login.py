"""How to log in to an account of AWS."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How to log in to AWS: with a profile of the AWS CLI, or its default, and by a role if there is one.

    Args:
        aws_profile: A profile of `~/.aws/config`; empty for what the environment says.
        role: The ARN of a role to assume.
        external_id: What the role's owner asks for beside the credentials.
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
