"""Verify AWS Signature Version 4 of requests: who signed, what was signed, and when.

`read_claim` reads a signature from the header or, of a presigned URL, from the query; `verify_claim` compares
it with the request. EC2, S3 and tunnels differ in how they encode the path, and in what stands for the body.
Source: IAM user guide, "Create a signed AWS API request"; S3 API reference, "Authenticating Requests"; error
codes as EC2, S3, STS and Systems Manager give them, from their API references' "Common errors".

botocore computes the signature. Its signer chooses the headers and encodes the path of a request that it
sends, where a verifier takes both as they arrived: that is all that `_Received` changes.
"""

import hmac
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from hashlib import sha256
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from dlcloud.local.api.call import Call, Refusal

WINDOW = timedelta(minutes=5)
# A client that signs two equal requests within one second gives them one signature, as a replay does.
REPEATABLE = timedelta(seconds=5)
WEEK_S = 7 * 86400
ALGORITHM = "AWS4-HMAC-SHA256"
TIME = "%Y%m%dT%H%M%SZ"
_CREDENTIAL = (
    r"(?P<key_id>[\w-]+)/(?P<scope>(?P<date>\d{8})/(?P<region>[a-z0-9-]+)/(?P<service>[a-z0-9-]+)"
    r"/aws4_request)"
)
_AUTHORIZATION = re.compile(
    rf"{ALGORITHM} Credential={_CREDENTIAL}, ?SignedHeaders=(?P<headers>[a-z0-9;-]+), "
    r"?Signature=(?P<signature>[0-9a-f]{64})"
)


class AuthError(Enum):
    """Code and HTTP status of an error at EC2, at S3, at other XML services and at JSON services."""

    MISSING = (
        ("MissingAuthenticationToken", 403),
        ("AccessDenied", 403),
        ("MissingAuthenticationToken", 403),
        ("MissingAuthenticationTokenException", 400),
    )
    INCOMPLETE = (
        ("IncompleteSignature", 400),
        ("AuthorizationHeaderMalformed", 400),
        ("IncompleteSignature", 400),
        ("IncompleteSignatureException", 400),
    )
    WRONG = (
        ("AuthFailure", 401),
        ("SignatureDoesNotMatch", 403),
        ("SignatureDoesNotMatch", 403),
        ("InvalidSignatureException", 400),
    )
    LATE = (
        ("RequestExpired", 400),
        ("RequestTimeTooSkewed", 403),
        ("SignatureDoesNotMatch", 403),
        ("InvalidSignatureException", 400),
    )
    UNKNOWN_KEY = (
        ("AuthFailure", 401),
        ("InvalidAccessKeyId", 403),
        ("InvalidClientTokenId", 403),
        ("UnrecognizedClientException", 400),
    )
    TOKEN_EXPIRED = (
        ("RequestExpired", 400),
        ("ExpiredToken", 400),
        ("ExpiredToken", 403),
        ("ExpiredTokenException", 400),
    )

    UNSUPPORTED = (
        ("UnsupportedOperation", 400),
        ("NotImplemented", 501),
        ("InvalidAction", 400),
        ("InvalidAction", 400),
    )

    def refuse(self, call: Call, message: str) -> Refusal:
        """Return the error in the words of the call's service."""
        ec2, s3, xml, json = self.value
        others = json if call.is_json else xml
        code, status = {"ec2": ec2, "s3": s3}.get(call.service, others)
        return Refusal(code=code, message=message, status=status)


class SignatureError(Exception):
    """A signature is refused."""

    def __init__(self, error: AuthError, message: str) -> None:
        super().__init__(message)
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a request says of its signature; `query` is what it signs, `lifetime` is of a presigned URL."""

    key_id: str
    scope: str
    region: str
    service: str
    headers: list[str]
    signature: str
    time: str
    signed_at: datetime
    query: str
    lifetime: timedelta | None = None


def read_claim(environ: Mapping[str, Any]) -> Claim:
    """Return the signature of a request, in its header or in its query, without verifying it.

    Raises:
        SignatureError: There is none, or it is malformed.
    """
    authorization, query = environ.get("HTTP_AUTHORIZATION", ""), environ.get("QUERY_STRING", "")
    if not authorization and "X-Amz-Signature=" in query:
        return _presigned(query)
    if not authorization:
        raise SignatureError(AuthError.MISSING, "The request is not signed: it has no Authorization header.")
    match, time = _AUTHORIZATION.fullmatch(authorization), environ.get("HTTP_X_AMZ_DATE", "")
    signed_at = parse_time(time)
    if match is None or signed_at is None or match["date"] != f"{signed_at:%Y%m%d}":
        message = "The Authorization header must be an AWS4-HMAC-SHA256 signature, dated by X-Amz-Date."
        raise SignatureError(AuthError.INCOMPLETE, message)
    return Claim(
        key_id=match["key_id"],
        scope=match["scope"],
        region=match["region"],
        service=match["service"],
        headers=match["headers"].split(";"),
        signature=match["signature"],
        time=time,
        signed_at=signed_at,
        query=query,
    )


def _presigned(query: str) -> Claim:
    """Read the signature of a presigned URL."""
    values = dict(parse_qsl(query))
    credential = re.fullmatch(_CREDENTIAL, values.get("X-Amz-Credential", ""))
    lifetime, signed_at = values.get("X-Amz-Expires", ""), parse_time(values.get("X-Amz-Date", ""))
    is_right = values.get("X-Amz-Algorithm") == ALGORITHM and lifetime.isdigit() and int(lifetime) <= WEEK_S
    if credential is None or signed_at is None or not is_right or credential["date"] != f"{signed_at:%Y%m%d}":
        raise SignatureError(AuthError.INCOMPLETE, "The query parameters of the signature are malformed.")
    return Claim(
        key_id=credential["key_id"],
        scope=credential["scope"],
        region=credential["region"],
        service=credential["service"],
        headers=values.get("X-Amz-SignedHeaders", "").split(";"),
        signature=values.get("X-Amz-Signature", ""),
        time=values["X-Amz-Date"],
        signed_at=signed_at,
        query="&".join(part for part in query.split("&") if not part.startswith("X-Amz-Signature=")),
        lifetime=timedelta(seconds=int(lifetime)),
    )


def verify_claim(
    claim: Claim,
    environ: Mapping[str, Any],
    secret: str | None,
    *,
    path: str,
    payload: str,
    window: timedelta = WINDOW,
) -> None:
    """Compare a signature with its request.

    Args:
        claim: The signature.
        environ: The request as WSGI's environment.
        secret: The secret of the access key; None for an unknown key.
        path: The path as it is signed.
        payload: The hash of the body, or the word that stands for it.
        window: How far its date may be from now, unless it states its lifetime.

    Raises:
        SignatureError: It is wrong, late, or of an unknown key.
    """
    if secret is None:
        raise SignatureError(AuthError.UNKNOWN_KEY, "The access key is not one of this local EC2.")
    now = datetime.now(UTC)
    if claim.lifetime is not None and now > claim.signed_at + claim.lifetime:
        raise SignatureError(AuthError.MISSING, "Request has expired")
    if abs(now - claim.signed_at) > (claim.lifetime or timedelta()) + window:
        message = f"The request was signed at {claim.signed_at:{TIME}}; it is {now:{TIME}} now."
        raise SignatureError(AuthError.LATE, message)
    sent = (name[5:].lower().replace("_", "-") for name in environ if name.startswith("HTTP_X_AMZ_"))
    needed = {"host", *(() if claim.lifetime is not None else sent)}
    if unsigned := sorted(needed - set(claim.headers)):
        raise SignatureError(AuthError.WRONG, f"These headers are not signed: {', '.join(unsigned)}.")
    canonical = canonical_request(environ, claim.headers, path=path, query=claim.query, payload=payload)
    expected = sign_canonical(canonical or "", time=claim.time, scope=claim.scope, secret=secret)
    if canonical is None or not hmac.compare_digest(expected.encode(), claim.signature.encode()):
        message = "The signature does not match the request: check the secret access key."
        raise SignatureError(AuthError.WRONG, message)


class SignatureVerifier:
    """Verifies signatures and remembers those of changes, which are not accepted again. Thread-safe.

    Those that an earlier process has accepted are not known: what was signed before `since` changes nothing.
    """

    def __init__(self, since: datetime) -> None:
        # Signatures are dated in whole seconds; a process takes longer to start than the rest of one.
        self._since = since.replace(microsecond=0)
        self._lock = threading.Lock()
        self._used: dict[str, datetime] = {}

    def refusal(self, call: Call, environ: Mapping[str, Any], secret: str | None) -> Refusal | None:
        """Return why a request is refused; None if its signature is right.

        Args:
            call: The call that was read from the request.
            environ: The request as WSGI's environment, with the raw path and query in RAW_URI.
            secret: The secret of the call's access key; None for an unknown key.
        """
        try:
            self._verify(call, environ, secret)
        except SignatureError as error:
            return error.error.refuse(call, str(error))
        return None

    def _verify(self, call: Call, environ: Mapping[str, Any], secret: str | None) -> None:
        claim = read_claim(environ)
        if claim.lifetime is not None:
            raise SignatureError(AuthError.MISSING, "The request is not signed in its header.")
        payload = sha256(call.body).hexdigest()
        if environ.get("HTTP_X_AMZ_CONTENT_SHA256", payload) != payload:
            raise SignatureError(AuthError.WRONG, "X-Amz-Content-Sha256 is not the hash of the body.")
        # Every service but S3 encodes the path, as it is sent, once more.
        path = quote(environ["RAW_URI"].partition("?")[0], safe="/-_.~")
        verify_claim(claim, environ, secret, path=path, payload=payload)
        if call.is_reading:
            return
        if claim.signed_at < self._since:
            message = "The request was signed before the local EC2 started, which may have carried it out."
            raise SignatureError(AuthError.LATE, message)
        if not self._use(claim.signature, claim.signed_at, datetime.now(UTC)):
            message = "This very request was made before: sign it again to repeat it."
            raise SignatureError(AuthError.WRONG, message)

    def _use(self, signature: str, signed_at: datetime, now: datetime) -> bool:
        """Remember a signature until its time is over; False if it is used again later than it may be."""
        with self._lock:
            self._used = {used: ends for used, ends in self._used.items() if ends >= now}
            is_new = signature not in self._used
            self._used[signature] = signed_at + WINDOW
            return is_new or now - signed_at <= REPEATABLE


def parse_time(text: str) -> datetime | None:
    """Return the time of X-Amz-Date; None for anything else."""
    try:
        return datetime.strptime(text, TIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def canonical_request(
    environ: Mapping[str, Any], names: list[str], *, path: str, query: str, payload: str
) -> str | None:
    """Return the canonical request of version 4; None if a signed header is missing.

    Args:
        environ: The request as WSGI's environment.
        names: The names of the signed headers.
        path: The path as it is signed.
        query: The query as it was sent.
        payload: The hash of the body, or the word that stands for it.
    """
    headers = {name: environ.get("HTTP_" + name.upper().replace("-", "_")) for name in names}
    if None in headers.values():
        return None
    pairs = (part.partition("=") for part in query.split("&") if part)
    params = [(unquote(name), unquote(value)) for name, _, value in pairs]
    request = AWSRequest(environ["REQUEST_METHOD"], f"http://ec2{path}", headers, params=params)
    request.context["payload"] = payload
    return str(_Received(None, "", "").canonical_request(request))


def sign_canonical(canonical: str, *, time: str, scope: str, secret: str) -> str:
    """Return the signature of a canonical request, in hexadecimal digits."""
    text = f"{ALGORITHM}\n{time}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    date, region, service, _ = scope.split("/")
    dated = SimpleNamespace(context={"timestamp": date})
    return str(_Received(Credentials("", secret), service, region).signature(text, dated))


class _Received(SigV4Auth):  # type: ignore[misc]  # botocore has no types
    """botocore's signer, of a request as it arrived: its path, its payload, and the headers signed."""

    def headers_to_sign(self, request: AWSRequest) -> Any:  # noqa: ANN401 - botocore has no types
        return request.headers

    def payload(self, request: AWSRequest) -> str:
        return str(request.context["payload"])

    def _normalize_url_path(self, path: str) -> str:
        return path
