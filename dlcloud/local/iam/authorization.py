"""Whether a caller may do what a call asks for: users, roles, their sessions, and AWS's refusals.

`find_caller` finds who signed, `call_refusal` evaluates the caller's policies on every resource that the
call touches (`access.py`), and `trust_refusal` asks the trust policy of a role that is to be assumed.
`InstanceRoles` has the credentials that instances get from their metadata. Importing this imports moto.
"""

import base64
import binascii
import json
import re
import secrets
import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID as ACCOUNT
from moto.iam.models import iam_backends
from moto.sts.models import AssumedRole, sts_backends

from dlcloud.local.api.call import Call, Refusal
from dlcloud.local.api.policy import AccessRequest, Decision, decide, is_allowed
from dlcloud.local.api.signature import AuthError
from dlcloud.local.iam.access import (
    PARTITION,
    SPOT_REQUEST,
    access_requests,
    create_spot_role,
    needs_spot_role,
    spot_role_request,
)
from dlcloud.model.instance import Market

_ADMINISTRATOR = "administrator"
_BOUNDARY = "permissions boundary"
_IDENTITY_BASED = "identity-based policy"
_NO_SPOT_ROLE = Refusal(
    status=403,
    code="AuthFailure.ServiceLinkedRoleCreationNotPermitted",
    message="The provided credentials do not have permission to create the service-linked role for EC2 Spot "
    "Instances.",
)
"""Source: determined-ai/determined, issue 1830."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """An IAM user, or the session of a role, with the texts of its policies; `boundary` None for none."""

    arn: str
    secret: str
    policies: tuple[str, ...]
    account: str = ACCOUNT
    token: str = ""
    ends_at: datetime | None = None
    boundary: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Denial:
    """A request that a kind of policy denies, by a statement or for want of one."""

    request: AccessRequest
    kind: str
    is_explicit: bool

    def text(self, arn: str) -> str:
        """Return AWS's words.

        Source: IAM user guide, "Troubleshoot access denied error messages".
        """
        request = self.request
        resource = "" if request.resource == "*" else f" on resource: {request.resource}"
        article = "an" if self.kind == _IDENTITY_BASED else "a"
        reason = f"because no {self.kind} allows the {request.action} action"
        reason = f"with an explicit deny in {article} {self.kind}" if self.is_explicit else reason
        return f"User: {arn} is not authorized to perform: {request.action}{resource} {reason}"


def find_caller(access_key: str) -> Caller | None:
    """Return the user or the session with an access key; None for an unknown key, or a role that is gone."""
    for account in {ACCOUNT, *list(iam_backends)}:
        session = sts_backends[account][PARTITION].get_assumed_role_from_access_key(access_key)
        if session is not None:
            return _session_caller(session)
        backend = iam_backends[account][PARTITION]
        for user in list(backend.users.values()):
            for key in user.access_keys:
                if key.access_key_id == access_key and key.status == "Active":
                    groups = backend.get_groups_for_user(user.name)
                    policies = tuple(text for holder in (user, *groups) for text in _policies(holder))
                    secret = key.secret_access_key
                    return Caller(arn=user.arn, secret=secret, policies=policies, account=account)
    return None


def add_administrator(account: str) -> tuple[str, str]:
    """Return id and secret of a new access key in an account, whose user may do anything there.

    Raises:
        ValueError: The id is not one of an account.
    """
    if re.fullmatch(r"\d{12}", account) is None:
        raise ValueError("an account id has 12 digits")
    backend = iam_backends[account][PARTITION]
    if _ADMINISTRATOR not in {user.name for user in list(backend.users.values())}:
        user = backend.create_user("us-east-1", user_name=_ADMINISTRATOR)
        statement = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        backend.put_user_policy(user.name, "everything", document)
    key = backend.create_access_key(_ADMINISTRATOR)
    return str(key.access_key_id), str(key.secret_access_key)


def session_end(session: AssumedRole) -> datetime:
    """Return when a session expires, in whole seconds as in the metadata."""
    return session.expiration.replace(microsecond=0, tzinfo=UTC)


def call_refusal(call: Call, caller: Caller) -> Refusal | None:
    """Return why a call is refused, the launches of a fleet left aside; None if it may continue."""
    if caller.ends_at is not None and datetime.now(UTC) >= caller.ends_at:
        return AuthError.TOKEN_EXPIRED.refuse(call, "The security token is expired.")
    if not secrets.compare_digest(call.session_token.encode(), caller.token.encode()):
        return AuthError.UNKNOWN_KEY.refuse(call, "The security token is not valid.")
    requests = (
        request for request in access_requests(call, caller.account) if not _is_of_pools(call, request)
    )
    refusal = _refusal(call, caller, requests)
    if refusal is not None or call.action == "CreateFleet":
        return refusal
    return _spot_role_refusal(call, caller)


def may_call(caller: Caller, request: AccessRequest) -> bool:
    """True if a caller's policies allow a request."""
    return _denial(caller, request) is None


def fleet_refusals(call: Call, caller: Caller) -> dict[Market, Refusal]:
    """Return the denials of the launches of an instant fleet by market; EC2 puts them into its reply.

    Source: karpenter-provider-aws, issues 1488 (ec2:RunInstances) and 5850 (spot-instances-request).
    """
    if call.action != "CreateFleet" or call.service != "ec2":
        return {}
    launch = [request for request in access_requests(call, caller.account) if _is_of_pools(call, request)]
    on_demand = [request for request in launch if f":{SPOT_REQUEST}/" not in request.resource]
    spot_refusal = _refusal(call, caller, launch) or _spot_role_refusal(call, caller)
    refusals = {Market.SPOT: spot_refusal, Market.ON_DEMAND: _refusal(call, caller, on_demand)}
    return {market: refusal for market, refusal in refusals.items() if refusal is not None}


def decode_message(text: str) -> dict[str, Any] | None:
    """Return what sts:DecodeAuthorizationMessage tells of an encoded message; None for another text."""
    try:
        content = json.loads(zlib.decompress(base64.urlsafe_b64decode(text)))
    except (ValueError, binascii.Error, zlib.error):
        return None
    return content if isinstance(content, dict) else None


def _session_caller(session: AssumedRole) -> Caller | None:
    roles = list(iam_backends[session.account_id][PARTITION].roles.values())
    role = next((role for role in roles if role.arn == session.role_arn), None)
    if role is None:
        return None
    managed = iam_backends[session.account_id][PARTITION].managed_policies
    boundary = managed.get(role.permissions_boundary_arn) if role.permissions_boundary_arn else None
    return Caller(
        arn=session.arn,
        secret=session.secret_access_key,
        policies=tuple(_policies(role)),
        account=session.account_id,
        token=session.session_token,
        ends_at=session_end(session),
        boundary=None if boundary is None else _document(boundary),
    )


def _policies(holder: Any) -> list[str]:  # noqa: ANN401 - moto's user, group or role
    return [*holder.policies.values(), *(_document(policy) for policy in holder.managed_policies.values())]


def _document(policy: Any) -> str:  # noqa: ANN401 - moto's managed policy
    return next(
        str(version.document)
        for version in policy.versions
        if version.version_id == policy.default_version_id
    )


def _is_of_pools(call: Call, request: AccessRequest) -> bool:
    """True if the request is about the launches of a fleet, not about the fleet."""
    if call.action != "CreateFleet" or request.action == "ec2:CreateFleet":
        return False
    return ":fleet/" not in request.resource


def _refusal(call: Call, caller: Caller, requests: Iterable[AccessRequest]) -> Refusal | None:
    """Return the refusal of the first request that the caller's policies do not allow."""
    denials = (_denial(caller, request) for request in requests)
    denial = next((denial for denial in denials if denial is not None), None)
    if denial is None:
        return None
    text = denial.text(caller.arn)
    if call.service != "ec2":
        code = "AccessDeniedException" if call.is_json else "AccessDenied"
        return Refusal(status=403, code=code, message=text)
    encoded = "" if call.is_reading else f". Encoded authorization failure message: {_encode(caller, denial)}"
    message = f"You are not authorized to perform this operation. {text}{encoded}"
    return Refusal(status=403, code="UnauthorizedOperation", message=message)


def _denial(caller: Caller, request: AccessRequest) -> _Denial | None:
    """Evaluate boundary and policies: a denial counts first, then what is missing."""
    request = replace(request, context={**request.context, "aws:PrincipalAccount": [caller.account]})
    kinds = [(_BOUNDARY, (caller.boundary,))] if caller.boundary is not None else []
    decisions = {
        kind: decide(documents, request) for kind, documents in [*kinds, (_IDENTITY_BASED, caller.policies)]
    }
    for decision in (Decision.DENIED, Decision.NOT_ALLOWED):
        for kind, other in reversed(decisions.items()):
            if other is decision:
                return _Denial(request=request, kind=kind, is_explicit=decision is Decision.DENIED)
    return None


def _spot_role_refusal(call: Call, caller: Caller) -> Refusal | None:
    """Return the refusal of a first spot request whose caller may not create EC2's role for them.

    Where it may, the role is created.
    """
    if not needs_spot_role(call, caller.account):
        return None
    if _denial(caller, spot_role_request(caller.account)) is not None:
        return _NO_SPOT_ROLE
    if call.parameter("DryRun") != "true":
        create_spot_role(caller.account)
    return None


def _encode(caller: Caller, denial: _Denial) -> str:
    """Encode a denial as EC2 encrypts it; here anybody could read it.

    Source: STS API reference, DecodeAuthorizationMessage: its contents.
    """
    request = denial.request
    conditions = [
        {"key": key, "values": {"items": [{"value": value} for value in values]}}
        for key, values in request.context.items()
    ]
    content = {
        "allowed": False,
        "explicitDeny": denial.is_explicit,
        "matchedStatements": {"items": []},
        "failures": {"items": []},
        "context": {
            "principal": {"name": caller.arn.rpartition("/")[2], "arn": caller.arn},
            "action": request.action,
            "resource": request.resource,
            "conditions": {"items": conditions},
        },
    }
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(content).encode())).decode()


ASSUME_ROLE = "sts:AssumeRole"
_CODE = re.compile(r"\d{6}")


def trust_refusal(call: Call, caller_arn: str, account: str) -> Refusal | None:
    """Return why a role cannot be assumed; None if it can, and for other calls.

    A role that does not exist is denied as one that trusts others. Any six digits are a right code: there are
    no devices here. `account` is the caller's; `caller_arn` is empty for its owner.
    Source: STS API reference, AssumeRole; IAM user guide, "External id".
    """
    if (call.service, call.action) != ("sts", "AssumeRole"):
        return None
    serial, code = call.parameter("SerialNumber"), call.parameter("TokenCode")
    if serial and not _CODE.fullmatch(code):
        return _denied("MultiFactorAuthentication failed with invalid MFA one time pass code.")
    arn = call.parameter("RoleArn")
    roles = [
        role for of_account in list(iam_backends.values()) for role in of_account[PARTITION].roles.values()
    ]
    trust = next((role.assume_role_policy_document for role in roles if role.arn == arn), "{}")
    context = {"aws:MultiFactorAuthPresent": [str(bool(serial)).lower()]}
    if external_id := call.parameter("ExternalId"):
        context["sts:ExternalId"] = [external_id]
    request = AccessRequest(action=ASSUME_ROLE, resource=arn, context=context)
    owner = f"arn:{PARTITION}:iam::{account}:root"
    if is_allowed([_for_caller(str(trust), {"*", account, owner, caller_arn})], request):
        return None
    return _denied(
        f"User: {caller_arn or owner} is not authorized to perform: {ASSUME_ROLE} on resource: {arn}"
    )


def _for_caller(trust: str, names: set[str]) -> str:
    """Return a trust policy as one of the role itself: the statements that name the caller or its account."""
    listed = json.loads(trust).get("Statement", [])
    statements = [
        {**statement, "Resource": "*"}
        for statement in (listed if isinstance(listed, list) else [listed])
        if names & _principals(statement.get("Principal"))
    ]
    return json.dumps({"Statement": statements})


def _principals(principal: object) -> set[str]:
    named = principal.get("AWS", ()) if isinstance(principal, dict) else principal
    return {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()


def _denied(message: str) -> Refusal:
    return Refusal(status=403, code="AccessDenied", message=message)


# Source: IAM user guide, "Use an IAM role to grant permissions to applications running on EC2 instances".
SESSION_S = 6 * 3600.0
_ISO = "%Y-%m-%dT%H:%M:%SZ"


class InstanceRoles:
    """The sessions of instances. Methods may be called from any thread."""

    def __init__(self) -> None:
        self.session_s = SESSION_S
        self._lock = threading.Lock()
        # The newest session and its beginning, by instance and role.
        self._newest: dict[tuple[str, str], tuple[AssumedRole, datetime]] = {}

    def documents(self, instance_id: str, profile: Any) -> dict[str, str]:  # noqa: ANN401 - moto's object
        """Return the metadata documents below `iam/` of an instance with a profile, or with None.

        Source: EC2 user guide, "Instance metadata categories": iam/info, iam/security-credentials/role-name.
        """
        if profile is None:
            return {}
        info = {"Code": "Success", "InstanceProfileArn": profile.arn, "InstanceProfileId": profile.id}
        info["LastUpdated"] = profile.create_date.strftime(_ISO)
        documents = {"iam/info": json.dumps(info)}
        for role in profile.roles:
            session, begun_at = self._instance_session(instance_id, role)
            credentials = {
                "Code": "Success",
                "LastUpdated": begun_at.strftime(_ISO),
                "Type": "AWS-HMAC",
                "AccessKeyId": session.access_key_id,
                "SecretAccessKey": session.secret_access_key,
                "Token": session.session_token,
                "Expiration": session_end(session).strftime(_ISO),
            }
            documents[f"iam/security-credentials/{role.name}"] = json.dumps(credentials)
        return documents

    def _instance_session(self, instance_id: str, role: Any) -> tuple[AssumedRole, datetime]:  # noqa: ANN401
        """Return the session of an instance and its beginning; a new one when half of its time has passed."""
        now = datetime.now(UTC)
        with self._lock:
            newest = self._newest.get((instance_id, role.arn))
            if newest is None or session_end(newest[0]) - now < (session_end(newest[0]) - newest[1]) / 2:
                session = sts_backends[role.account_id][PARTITION].assume_role(
                    region_name="us-east-1",
                    role_session_name=instance_id,
                    role_arn=role.arn,
                    policy="",
                    duration=int(self.session_s),
                    external_id="",
                )
                newest = self._newest[instance_id, role.arn] = (session, now)
            return newest
