"""What an instance may do by its instance profile: its credentials, and the refusal of everything else.

Whoever calls without such credentials is the owner of the account, who may do anything here. Importing this
imports moto.
"""

import json
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from moto.iam.models import iam_backends
from moto.sts.models import sts_backends

from dlcloud.local.authorization import questions
from dlcloud.local.call import Call
from dlcloud.local.policy import allows

# Source: IAM user guide, "Use an IAM role to grant permissions to applications running on EC2 instances".
SESSION_S = 6 * 3600.0
_ISO = "%Y-%m-%dT%H:%M:%SZ"
_PARTITION = "aws"


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """Why a call is refused, in the words of its service."""

    status: int
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """Temporary credentials of a role on one instance."""

    account: str
    role_arn: str
    arn: str
    access_key: str
    secret_key: str
    token: str
    begun_at: datetime
    ends_at: datetime


class InstanceRoles:
    """The sessions of all instances of one site. Methods may be called from any thread."""

    def __init__(self) -> None:
        self.session_s = SESSION_S
        self._lock = threading.Lock()
        self._newest: dict[tuple[str, str], _Session] = {}
        self._by_key: dict[str, _Session] = {}

    def documents(self, instance_id: str, profile: Any) -> dict[str, str]:  # noqa: ANN401 - moto's object
        """Return what the metadata service shows below `iam/` of an instance with a profile, or without one.

        Source: EC2 user guide, "Instance metadata categories": iam/info, iam/security-credentials/role-name.
        """
        if profile is None:
            return {}
        info = {"Code": "Success", "InstanceProfileArn": profile.arn, "InstanceProfileId": profile.id}
        info["LastUpdated"] = profile.create_date.strftime(_ISO)
        shown = {"iam/info": json.dumps(info)}
        for role in profile.roles:
            session = self._session(instance_id, role)
            credentials = {
                "Code": "Success",
                "LastUpdated": session.begun_at.strftime(_ISO),
                "Type": "AWS-HMAC",
                "AccessKeyId": session.access_key,
                "SecretAccessKey": session.secret_key,
                "Token": session.token,
                "Expiration": session.ends_at.strftime(_ISO),
            }
            shown[f"iam/security-credentials/{role.name}"] = json.dumps(credentials)
        return shown

    def denial(self, call: Call) -> Denial | None:
        """Return why a call with an instance's credentials is refused; None where it may go on."""
        session = self._by_key.get(call.access_key)
        if session is None:
            return None
        ec2 = call.service == "ec2"
        if datetime.now(UTC) >= session.ends_at:
            code = "RequestExpired" if ec2 else "ExpiredToken"
            return Denial(status=400, code=code, message="The security token is expired.")
        role = _role(session)
        if role is None or not secrets.compare_digest(call.session_token.encode(), session.token.encode()):
            code = "AuthFailure" if ec2 else "InvalidClientTokenId"
            return Denial(status=401 if ec2 else 403, code=code, message="The security token is not valid.")
        documents = list(_policies(role))
        for question in questions(call, session.account):
            if not allows(documents, question):
                code = "AccessDeniedException" if call.is_json else "AccessDenied"
                message = (
                    f"User: {session.arn} is not authorized to perform: {question.action} on resource: "
                    f"{question.resource} because no identity-based policy allows it"
                )
                return Denial(status=403, code="UnauthorizedOperation" if ec2 else code, message=message)
        return None

    def _session(self, instance_id: str, role: Any) -> _Session:  # noqa: ANN401 - moto's object
        """Return the instance's session, a new one where half of its time has passed."""
        now = datetime.now(UTC)
        with self._lock:
            known = self._newest.get((instance_id, role.arn))
            if known is None or known.ends_at - now < (known.ends_at - known.begun_at) / 2:
                known = self._begin(instance_id, role, now)
            return known

    def _begin(self, instance_id: str, role: Any, now: datetime) -> _Session:  # noqa: ANN401 - as above
        assumed = sts_backends[role.account_id][_PARTITION].assume_role(
            region_name="us-east-1",
            role_session_name=instance_id,
            role_arn=role.arn,
            policy="",
            duration=int(self.session_s),
            external_id="",
        )
        # Whole seconds, as the metadata service tells them.
        ends_at = (now + timedelta(seconds=self.session_s)).replace(microsecond=0)
        session = _Session(
            account=role.account_id,
            role_arn=role.arn,
            arn=assumed.arn,
            access_key=assumed.access_key_id,
            secret_key=assumed.secret_access_key,
            token=assumed.session_token,
            begun_at=now,
            ends_at=ends_at,
        )
        self._newest[instance_id, role.arn] = session
        self._by_key[session.access_key] = session
        return session


def _role(session: _Session) -> Any | None:  # noqa: ANN401 - moto's object
    roles = iam_backends[session.account][_PARTITION].roles.values()
    return next((role for role in list(roles) if role.arn == session.role_arn), None)


def _policies(role: Any) -> Iterator[str]:  # noqa: ANN401 - moto's object
    """Yield the documents of a role's own policies and of those attached to it."""
    yield from role.policies.values()
    for policy in role.managed_policies.values():
        yield policy.document
