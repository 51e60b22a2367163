"""Verify signatures of requests to S3: in the header or in the query, with or without the body's hash.

Source: S3 API reference, "Authenticating Requests (AWS Signature Version 4)".
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from dlcloud.local.api.signature import (
    ALGORITHM,
    AUTHORIZATION,
    AuthError,
    SignatureError,
    canonical_request,
    headers_to_sign,
    parse_time,
    sign_canonical,
)
from dlcloud.local.s3.calls import S3Call, is_old_signature

UNSIGNED = "UNSIGNED-PAYLOAD"
STREAMING = "STREAMING-"
_WINDOW = timedelta(minutes=15)
_LONGEST = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A signature that was verified, as far as the chunks of a body continue it."""

    time: str
    scope: str
    signature: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """What a request says of its signature; `lifetime` is of a presigned URL."""

    scope: str
    headers: list[str]
    signature: str
    time: str
    query: str
    lifetime: timedelta | None = None


def verify(call: S3Call, environ: Mapping[str, Any], secret: str | None, *, is_whole: bool = True) -> Signed:
    """Return the signature of a request, if it is right; `is_whole` is False if its body was not read yet.

    Raises:
        SignatureError: It is missing, malformed, late or wrong, or of an unknown key.
    """
    if is_old_signature(environ):
        message = "The local EC2 takes signatures of version 4 ('s3v4'), and no presigned POST."
        raise SignatureError(AuthError.UNSUPPORTED, message)
    claim = _presigned(environ) or _in_header(environ)
    if secret is None:
        raise SignatureError(
            AuthError.UNKNOWN_KEY, "The AWS Access Key Id you provided does not exist in our records."
        )
    _check_time(claim)
    if missing := sorted(_must_be_signed(environ, claim) - set(claim.headers)):
        message = f"There were headers present in the request which were not signed: {', '.join(missing)}"
        raise SignatureError(AuthError.WRONG, message)
    path = quote(unquote(environ["RAW_URI"].partition("?")[0]), safe="/-_.~")
    payload = _payload(call, environ, claim, is_whole=is_whole)
    canonical = canonical_request(environ, claim.headers, path=path, query=claim.query, payload=payload)
    expected = sign_canonical(canonical or "", time=claim.time, scope=claim.scope, secret=secret)
    if canonical is None or not hmac.compare_digest(expected, claim.signature):
        message = (
            "The request signature we calculated does not match the signature you provided. "
            "Check your key and signing method."
        )
        raise SignatureError(AuthError.WRONG, message)
    return Signed(time=claim.time, scope=claim.scope, signature=claim.signature, secret=secret)


def _in_header(environ: Mapping[str, Any]) -> _Claim:
    authorization, time = environ.get("HTTP_AUTHORIZATION", ""), environ.get("HTTP_X_AMZ_DATE", "")
    if not authorization:
        raise SignatureError(AuthError.MISSING, "Access Denied")
    match, signed_at = AUTHORIZATION.fullmatch(authorization), parse_time(time)
    if match is None or signed_at is None or match["date"] != f"{signed_at:%Y%m%d}":
        raise SignatureError(AuthError.INCOMPLETE, "The authorization header is malformed.")
    return _Claim(
        scope=match["scope"],
        headers=match["headers"].split(";"),
        signature=match["signature"],
        time=time,
        query=environ["QUERY_STRING"],
    )


def _presigned(environ: Mapping[str, Any]) -> _Claim | None:
    """Read the signature of a presigned URL; None if there is none."""
    query = environ["QUERY_STRING"]
    values = dict(parse_qsl(query))
    if "X-Amz-Signature" not in values:
        return None
    lifetime, scope = values.get("X-Amz-Expires", ""), values.get("X-Amz-Credential", "").partition("/")[2]
    if values.get("X-Amz-Algorithm") != ALGORITHM or not lifetime.isdigit():
        raise SignatureError(AuthError.INCOMPLETE, "The query parameters of the signature are malformed.")
    rest = [part for part in query.split("&") if not part.startswith("X-Amz-Signature=")]
    return _Claim(
        scope=scope,
        headers=values.get("X-Amz-SignedHeaders", "").split(";"),
        signature=values["X-Amz-Signature"],
        time=values.get("X-Amz-Date", ""),
        query="&".join(rest),
        lifetime=timedelta(seconds=int(lifetime)),
    )


def _check_time(claim: _Claim) -> None:
    signed_at, now = parse_time(claim.time), datetime.now(UTC)
    if signed_at is None or claim.scope.partition("/")[0] != f"{signed_at:%Y%m%d}":
        raise SignatureError(AuthError.INCOMPLETE, "The signature carries no right date.")
    if claim.lifetime is not None:
        if claim.lifetime > _LONGEST:
            raise SignatureError(AuthError.INCOMPLETE, "X-Amz-Expires must be less than a week (in seconds)")
        if now > signed_at + claim.lifetime:
            raise SignatureError(AuthError.MISSING, "Request has expired")
    elif abs(now - signed_at) > _WINDOW:
        raise SignatureError(
            AuthError.LATE, "The difference between the request time and the current time is too large."
        )


def _must_be_signed(environ: Mapping[str, Any], claim: _Claim) -> set[str]:
    return {"host"} if claim.lifetime is not None else headers_to_sign(environ)


def _payload(call: S3Call, environ: Mapping[str, Any], claim: _Claim, *, is_whole: bool) -> str:
    """Return what stands for the body in the signed text."""
    sent = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
    if claim.lifetime is not None:
        return sent or UNSIGNED
    if not sent:
        raise SignatureError(
            AuthError.INCOMPLETE, "Missing required header for this request: x-amz-content-sha256"
        )
    if sent == UNSIGNED or sent.startswith(STREAMING) or not is_whole:
        return str(sent)
    if not hmac.compare_digest(sent.encode(), hashlib.sha256(call.body).hexdigest().encode()):
        raise SignatureError(
            AuthError.WRONG,
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        )
    return str(sent)
