"""botocore's errors: translated into dlcloud's, ignored, or retried."""

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from botocore import exceptions as boto

from dlcloud.core.errors import CapacityError, CloudError, CredentialsError, QuotaError, ThrottledError

# Source: EC2 API reference, "Error codes for the Amazon EC2 API".
CAPACITY = {
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "SpotMaxPriceTooLow",
    "Unsupported",
    "UnfulfillableCapacity",
}
QUOTA = {"VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "VolumeLimitExceeded"}
THROTTLED = {"RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequestsException"}
DENIED = {
    "AuthFailure",
    "UnauthorizedOperation",
    "AccessDenied",
    "AccessDeniedException",
    "InvalidClientTokenId",
    "ExpiredToken",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
    "OptInRequired",
}
POLICY_HINT = "check the credentials and their policy (templates/iam_policy.json; iam_policy_detach.json)"
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
        CredentialsError, CapacityError, QuotaError, ThrottledError, CloudError: As the tree in `core.errors`.
    """
    try:
        yield
    except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.ProfileNotFound) as error:
        hint = "run `aws configure`, or set AWS_PROFILE; `cloud: local` in a recipe needs no account"
        raise CredentialsError(f"{action}: there are no AWS credentials ({error})", hint) from error
    except (boto.CredentialRetrievalError, boto.TokenRetrievalError, boto.SSOError) as error:
        hint = "log in again: aws sso login, or the program that issues this profile's credentials"
        raise CredentialsError(f"{action}: the AWS credentials are not valid ({error})", hint) from error
    except boto.ClientError as error:
        if error_code(error) not in ignore:
            raise refusal(action, error) from error
    except (boto.HTTPClientError, boto.ConnectionError) as error:
        unreached = CloudError(
            f"{action}: AWS cannot be reached ({error})", "check the network, then run it again"
        )
        unreached.answered = False
        raise unreached from error
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
    text = f"{action}: {error.response.get('Error', {}).get('Message') or code} ({code})"
    if code in CAPACITY:
        return CapacityError(text, "try another type, zone or market")
    if code in QUOTA:
        return QuotaError(text, "request a higher limit in Service Quotas, or fewer or smaller instances")
    if code in THROTTLED:
        return ThrottledError(text, "wait a minute, then run it again")
    if code in DENIED:
        return CredentialsError(text, POLICY_HINT)
    refused = CloudError(text)
    # A failure on EC2's own side does not say whether the request had an effect.
    refused.answered = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) < SERVER_ERROR
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


def retry_throttled(
    call: Callable[..., Any], arguments: Mapping[str, Any], *, pause: Callable[[float], None]
) -> Any:  # noqa: ANN401  boto3 has no types
    """Make a launch call; where it is throttled, repeat it.

    botocore's own retries cannot be used for launches: "no capacity" is a server error, which they repeat.
    """
    return retry_codes(call, arguments, THROTTLED, pauses_s=_backoff(), pause=pause)


def _backoff() -> Iterator[float]:
    """Yield pauses that double, shortened at random.

    Source: AWS Architecture Blog, "Exponential Backoff And Jitter" (with a floor of a half).
    """
    for attempt in range(TRIES - 1):
        longest = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S)
        yield longest * random.uniform(0.5, 1.0)  # noqa: S311  no secret
