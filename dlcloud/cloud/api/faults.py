"""botocore's errors: translated into dlcloud's, ignored, or retried.

Every call of AWS runs inside `translate_errors`, which raises a `DlcloudError` that names what was attempted
and the API action, with a hint. Capacity, quota, throttling, denial and expired credentials are distinguished
by EC2's codes. `answered` is False if the request may have had an effect; then its intent stays open.
"""

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from dlcloud.model.account import UPGRADE_HINT
from dlcloud.model.errors import (
    CapacityError,
    CloudError,
    CredentialsError,
    MissingCredentialsError,
    QuotaError,
    ThrottledError,
    read_denial,
)

# Source: EC2 API reference, "Error codes for the Amazon EC2 API"; karpenter-provider-aws, pkg/errors.
CAPACITY = {
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted",  # of spot alone: its service-linked role is missing
    "IdempotentInstanceTerminated",  # of a repeated request: its instance is gone, another one may start
    "InsufficientAddressCapacity",
    "InsufficientCapacity",
    "InsufficientFreeAddressesInSubnet",
    "InsufficientHostCapacity",
    "InsufficientInstanceCapacity",
    "InsufficientReservedInstanceCapacity",
    "InsufficientVolumeCapacity",
    "InvalidFleetConfiguration",  # of a pool: its zone does not offer its type
    "InvalidPlacementGroup.InUse",  # of a pool in another zone than the group's
    "ReservationCapacityExceeded",
    "SpotMaxPriceTooLow",
    "Unsupported",
    "UnfulfillableCapacity",
}
QUOTA = {
    "InstanceLimitExceeded",
    "MaxFleetCountExceeded",
    "MaxSpotFleetRequestCountExceeded",
    "MaxSpotInstanceCountExceeded",
    "VcpuLimitExceeded",
    "VolumeLimitExceeded",
}
THROTTLED = {
    "EC2ThrottledException",
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
DENIED = {
    "AuthFailure",
    "UnauthorizedOperation",
    "AccessDenied",
    "AccessDeniedException",
    "InvalidClientTokenId",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
EXPIRED = {"ExpiredToken", "ExpiredTokenException"}
MISDATED = {"RequestExpired", "RequestTimeTooSkewed"}
"""Of a login that has ended, or of a clock: EC2 has one code for both."""
FAILED = {"InternalError", "InternalFailure", "ServerInternal", "ServiceUnavailable", "Unavailable"}
"""Failures on EC2's own side, which a fleet's reply reports without an HTTP status."""

POLICY_HINT = "check the credentials and their policy: dlcloud policy, dlcloud policy detach"
LOGIN_HINT = "log in again: aws sso login, or the program that issues this profile's credentials"
CLOCK_HINT = "this machine's clock is wrong: compare date -u"
ACCOUNT_HINTS = {
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": (
        "once per account: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com"
    ),
    "Blocked": "AWS has blocked this account: ask AWS Support, https://console.aws.amazon.com/support",
    "OptInRequired": "subscribe to what the message names, or finish the account's registration with AWS",
    "PendingVerification": "AWS still verifies this account for the region: run it again later",
}
"""The hints for refusals of the account as such, whatever its policies allow."""
NO_FREE_TIER = "not eligible for Free Tier"
"""In EC2's message, for a type or an image that an account of AWS's Free plan may not launch; its code,
InvalidParameterCombination, stands for many faults.
Source: splunk/attack_range, issue 1302; bitnami/vms, issue 1838."""
NO_DEFAULT_VPC_HINT = (
    "aws ec2 create-default-vpc, in the region of the recipe; or name a VPC in the recipe: network"
)
INVALID_HINTS = {
    "InvalidBlockDeviceMapping": "change disk_gib in the recipe to what the message asks for",
    "MissingInput": NO_DEFAULT_VPC_HINT,
    "VPCIdNotSpecified": NO_DEFAULT_VPC_HINT,
}
UNKNOWN_KEYS_HINT = (
    "if aws sts get-caller-identity --region us-east-1 succeeds, the region is switched off "
    "(aws account list-regions --region-opt-status-contains DISABLED) or this machine's clock is wrong "
    "(date -u)"
)
DENIED_HINTS = {
    "AWS was not able to validate": UNKNOWN_KEYS_HINT,
    "security token included in the request is invalid": UNKNOWN_KEYS_HINT,
    "Signature expired": CLOCK_HINT,
    "Signature not yet current": CLOCK_HINT,
    "User not enabled for cost explorer": (
        "open Cost Explorer once, https://console.aws.amazon.com/costmanagement; it has figures a day later"
    ),
}
"""The hints for denials that are no question of policies, by a part of their message.

A region that is switched off, and a clock that is wrong, look like wrong keys. Sources: aws-okta, issue 225;
steampipe-plugin-aws, issue 75; aws-sdk-ruby, issue 2850; aws-cost-explorer-report, issue 15.
"""
NOT_VISIBLE = {
    "InvalidGroup.NotFound",
    "InvalidInstanceID.NotFound",
    "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidSecurityGroupID.NotFound",
}
"""Answers on what was created a moment ago: EC2 may know it only seconds later.
Source: EC2 developer guide, "Eventual consistency in the Amazon EC2 API"."""
LATE_PAUSES_S = (0.5, 1.0, 2.0, 2.5, *[4.0] * 6)
"""Between repetitions of a call on what was created a moment ago: 30 s in all."""
SERVER_ERROR = 500  # HTTP: from here on the fault is the server's
TRIES = 8
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 20.0


@contextmanager
def translate_errors(action: str, *, ignore: Collection[str] = ()) -> Iterator[None]:
    """Raise botocore's exceptions as a DlcloudError that names the action.

    Args:
        action: What is attempted, for which object, and the API call in brackets.
        ignore: Codes of refusals that end the block without an error.

    Raises:
        CredentialsError, CapacityError, QuotaError, ThrottledError, CloudError: See `model.errors`.
    """
    try:
        yield
    except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.ProfileNotFound) as error:
        hint = "aws configure, or set AWS_PROFILE; --cloud local rehearses on this machine without an account"
        raise MissingCredentialsError(f"{action}: there are no AWS credentials ({error})", hint) from error
    except (boto.CredentialRetrievalError, boto.TokenRetrievalError, boto.SSOError) as error:
        message = f"{action}: the AWS credentials are not valid ({error})"
        raise CredentialsError(message, LOGIN_HINT) from error
    except boto.RefreshWithMFAUnsupportedError as error:
        message = f"{action}: the session that was begun with an MFA code has expired"
        raise CredentialsError(message, "run it again; it asks for a new code") from error
    except boto.ClientError as error:
        if error_code(error) not in ignore:
            raise refusal(action, error) from error
    except (boto.HTTPClientError, boto.ConnectionError) as error:
        unreached = CloudError(
            f"{action}: AWS cannot be reached ({error})", "check the network, then run it again"
        )
        unreached.answered = False
        raise unreached from error
    except ResponseParserError as error:  # a proxy or another endpoint answered, such as with a page
        first = str(error).partition("\n")[0][:200]
        unread = CloudError(f"{action}: the answer is not AWS's ({first})", "check proxies and endpoints")
        unread.answered = False
        raise unread from error
    except boto.BotoCoreError as error:
        unclear = CloudError(f"{action}: {error}")
        unclear.answered = False
        raise unclear from error


def error_code(error: boto.ClientError) -> str:
    """Return EC2's own name of a refusal."""
    return str(error.response.get("Error", {}).get("Code", ""))


def refusal(action: str, error: boto.ClientError) -> CloudError:
    """Return the DlcloudError for a refusal of EC2."""
    code = error_code(error)
    message = error.response.get("Error", {}).get("Message") or code
    denial = read_denial(message) if code in DENIED else None
    text = f"{action}: {denial.describe() if denial else message} ({code})"
    if code in CAPACITY:
        return CapacityError(text, ACCOUNT_HINTS.get(code, CapacityError.USUAL_HINT))
    if code in QUOTA:
        return QuotaError(text, "request a higher limit in Service Quotas, or fewer or smaller instances")
    if NO_FREE_TIER in message:
        return QuotaError(text, UPGRADE_HINT)
    if code in THROTTLED:
        return ThrottledError(text, "wait a minute, then run it again")
    if code in EXPIRED | MISDATED:
        return CredentialsError(text, f"{LOGIN_HINT}; or {CLOCK_HINT}" if code in MISDATED else LOGIN_HINT)
    refused = CloudError(text, INVALID_HINTS.get(code, ""))
    if code in DENIED or code in ACCOUNT_HINTS:
        fallback = next((hint for part, hint in DENIED_HINTS.items() if part in message), POLICY_HINT)
        refused = CredentialsError(text, denial.advise() if denial else ACCOUNT_HINTS.get(code, fallback))
        refused.denial = denial
    # A failure on EC2's own side does not say whether the request had an effect.
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    refused.answered = status < SERVER_ERROR and code not in FAILED
    refused.is_final = refused.answered
    return refused


def retry_codes(
    call: Callable[..., Any],
    arguments: Mapping[str, Any],
    codes: Collection[str],
    *,
    pauses_s: Iterable[float],
    pause: Callable[[float], None],
) -> Any:  # noqa: ANN401  boto3 has no types
    """Make a call; after a refusal with one of `codes`, repeat it, once after each of the pauses."""
    for seconds in pauses_s:
        try:
            return call(**arguments)
        except boto.ClientError as error:
            if error_code(error) not in codes:
                raise
        pause(seconds)
    return call(**arguments)


def retry_launch(
    call: Callable[..., Any], arguments: Mapping[str, Any], *, pause: Callable[[float], None]
) -> Any:  # noqa: ANN401  boto3 has no types
    """Make a launch call; repeat it unchanged if it is throttled, or EC2 does not know yet what it names.

    botocore's own retries cannot be used for launches: "no capacity" is a server error, which they repeat.
    """
    throttled, late = _backoff(), iter(LATE_PAUSES_S)
    while True:
        try:
            return call(**arguments)
        except boto.ClientError as error:
            code = error_code(error)
            pauses = throttled if code in THROTTLED else late if code in NOT_VISIBLE else iter(())
            seconds = next(pauses, None)
            if seconds is None:
                raise
        pause(seconds)


def _backoff() -> Iterator[float]:
    """Yield pauses that double, shortened at random.

    Source: AWS Architecture Blog, "Exponential Backoff And Jitter" (with a floor of a half).
    """
    for attempt in range(TRIES - 1):
        longest = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S)
        yield longest * random.uniform(0.5, 1.0)  # noqa: S311  no secret
