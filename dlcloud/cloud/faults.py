"""botocore's exceptions, translated once into dlcloud's."""

from collections.abc import Iterator
from contextlib import contextmanager

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
POLICY_HINT = "check the credentials and their policy (templates/iam_policy.json; iam_policy_detach.json)"
SERVER_ERROR = 500  # HTTP: from here on it is the server's fault
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


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Raise what botocore raises within as a DlcloudError that says what was being done.

    Raises:
        CredentialsError, CapacityError, QuotaError, ThrottledError, CloudError: As the tree in `core.errors`.
    """
    try:
        yield
    except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.ProfileNotFound) as error:
        hint = "run `aws configure`, or set AWS_PROFILE; `cloud: local` in a recipe needs no account"
        raise CredentialsError(f"{what}: there are no AWS credentials ({error})", hint) from error
    except (boto.CredentialRetrievalError, boto.TokenRetrievalError, boto.SSOError) as error:
        hint = "log in again: aws sso login, or whatever gives this profile its credentials"
        raise CredentialsError(f"{what}: the AWS credentials do not hold ({error})", hint) from error
    except boto.ClientError as error:
        raise refusal(what, error) from error
    except (boto.HTTPClientError, boto.ConnectionError) as error:
        unreached = CloudError(
            f"{what}: AWS cannot be reached ({error})", "check the network, then run it again"
        )
        unreached.answered = False
        raise unreached from error
    except boto.BotoCoreError as error:
        unclear = CloudError(f"{what}: {error}")
        unclear.answered = False
        raise unclear from error


def error_code(error: boto.ClientError) -> str:
    """Return EC2's own name for a refusal."""
    return str(error.response.get("Error", {}).get("Code", ""))


def refusal(what: str, error: boto.ClientError) -> CloudError:
    """Return the error of the tree that says what EC2's refusal means."""
    code = error_code(error)
    text = f"{what}: {error.response.get('Error', {}).get('Message') or code} ({code})"
    if code in CAPACITY:
        return CapacityError(text, "try another type, zone or market")
    if code in QUOTA:
        return QuotaError(text, "ask for a higher limit in Service Quotas, or for fewer or smaller instances")
    if code in THROTTLED:
        return ThrottledError(text, "wait a minute, then run it again")
    if code in DENIED:
        return CredentialsError(text, POLICY_HINT)
    refused = CloudError(text)
    # Of a failure on its own side EC2 does not say whether anything came of the request.
    refused.answered = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) < SERVER_ERROR
    return refused
