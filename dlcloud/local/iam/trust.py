"""Whether a role may be assumed: its trust policy, external id and MFA code. Importing this imports moto."""

import json
import re

from moto.core.models import DEFAULT_ACCOUNT_ID as ACCOUNT
from moto.iam.models import iam_backends

from dlcloud.local.api.call import Call, Refusal
from dlcloud.local.api.policy import AccessRequest, is_allowed
from dlcloud.local.iam.access import PARTITION

ASSUME_ROLE = "sts:AssumeRole"
_OWNER = f"arn:{PARTITION}:iam::{ACCOUNT}:root"
_CODE = re.compile(r"\d{6}")


def trust_refusal(call: Call, caller_arn: str) -> Refusal | None:
    """Return why a role cannot be assumed; None if it can, and for other calls.

    A role that does not exist is denied as one that trusts others. Any six digits are a right code: there are
    no devices here. `caller_arn` is empty for the owner of the account.
    Source: STS API reference, AssumeRole; IAM user guide, "External id".
    """
    if (call.service, call.action) != ("sts", "AssumeRole"):
        return None
    serial, code = call.parameter("SerialNumber"), call.parameter("TokenCode")
    if serial and not _CODE.fullmatch(code):
        return _denied("MultiFactorAuthentication failed with invalid MFA one time pass code.")
    arn = call.parameter("RoleArn")
    roles = list(iam_backends[ACCOUNT][PARTITION].roles.values())
    trust = next((role.assume_role_policy_document for role in roles if role.arn == arn), "{}")
    context = {"aws:MultiFactorAuthPresent": [str(bool(serial)).lower()]}
    if external_id := call.parameter("ExternalId"):
        context["sts:ExternalId"] = [external_id]
    request = AccessRequest(action=ASSUME_ROLE, resource=arn, context=context)
    if is_allowed([_for_caller(str(trust), caller_arn)], request):
        return None
    return _denied(
        f"User: {caller_arn or _OWNER} is not authorized to perform: {ASSUME_ROLE} on resource: {arn}"
    )


def _for_caller(trust: str, caller_arn: str) -> str:
    """Return a trust policy as one of the role itself: the statements that name the caller or its account."""
    names = {"*", ACCOUNT, _OWNER, caller_arn}
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
