"""Whether a caller may do what a call asks for: IAM users and roles, and the refusal in AWS's words.

A caller with the home's access key is the owner of the account, who may do anything here. Importing this
imports moto.
"""

import base64
import binascii
import json
import secrets
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID as ACCOUNT
from moto.iam.models import iam_backends
from moto.sts.models import AssumedRole, sts_backends

from dlcloud.local.api.call import Call, Refusal
from dlcloud.local.api.policy import AccessRequest, Decision, decide
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
    session = sts_backends[ACCOUNT][PARTITION].get_assumed_role_from_access_key(access_key)
    if session is not None:
        return _session_caller(session)
    for user in list(iam_backends[ACCOUNT][PARTITION].users.values()):
        for key in user.access_keys:
            if key.access_key_id == access_key and key.status == "Active":
                groups = iam_backends[ACCOUNT][PARTITION].get_groups_for_user(user.name)
                policies = tuple(text for holder in (user, *groups) for text in _policies(holder))
                return Caller(arn=user.arn, secret=key.secret_access_key, policies=policies)
    return None


def session_end(session: AssumedRole) -> datetime:
    """Return when a session expires, in whole seconds as in the metadata."""
    return session.expiration.replace(microsecond=0, tzinfo=UTC)


def call_refusal(call: Call, caller: Caller) -> Refusal | None:
    """Return why a call is refused, the launches of a fleet left aside; None if it may go on."""
    if caller.ends_at is not None and datetime.now(UTC) >= caller.ends_at:
        return AuthError.TOKEN_EXPIRED.refuse(call, "The security token is expired.")
    if not secrets.compare_digest(call.session_token.encode(), caller.token.encode()):
        return AuthError.UNKNOWN_KEY.refuse(call, "The security token is not valid.")
    requests = (request for request in access_requests(call, ACCOUNT) if not _is_of_pools(call, request))
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
    launch = [request for request in access_requests(call, ACCOUNT) if _is_of_pools(call, request)]
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
    if not needs_spot_role(call, ACCOUNT):
        return None
    if _denial(caller, spot_role_request(ACCOUNT)) is not None:
        return _NO_SPOT_ROLE
    if call.parameter("DryRun") != "true":
        create_spot_role(ACCOUNT)
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
