"""Verify signatures of requests to S3: in the header or in the query, with or without the body's hash.

Source: S3 API reference, "Authenticating Requests (AWS Signature Version 4)".
"""

import base64
import binascii
import hashlib
import hmac
import io
import zlib
from collections.abc import Callable, Mapping
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
    sign,
    sign_canonical,
)
from dlcloud.local.s3.calls import S3Call, content_md5, is_old_signature

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


_EMPTY = hashlib.sha256(b"").hexdigest()
_HMAC = "AWS4-HMAC-SHA256"
_MODES = ("UNSIGNED-PAYLOAD-TRAILER", f"{_HMAC}-PAYLOAD", f"{_HMAC}-PAYLOAD-TRAILER")
_CHECKSUM = "x-amz-checksum-"


class BodyError(Exception):
    """A body is not what its headers say; `code` is S3's."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


def decode_body(body: bytes, environ: Mapping[str, Any], signed: Signed) -> tuple[bytes, dict[str, str]]:
    """Return a body without its chunks' frames, and the trailing headers.

    Raises:
        BodyError: A frame, a length or the signature of a chunk is wrong.
    """
    mode = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
    if not mode.startswith(STREAMING):
        return body, {}
    mode = mode.removeprefix(STREAMING)
    if mode not in _MODES:
        raise BodyError("NotImplemented", f"The local EC2 does not read bodies of {STREAMING}{mode}.", 501)
    reader = _ChunkReader(body, signed if mode.startswith(_HMAC) else None)
    try:
        content = reader.read_chunks()
        trailers = reader.read_trailers() if mode.endswith("-TRAILER") else {}
    except ValueError as error:
        raise BodyError("IncompleteBody", "The request body terminated unexpectedly.") from error
    length = environ.get("HTTP_X_AMZ_DECODED_CONTENT_LENGTH", "")
    if length != str(len(content)):
        raise BodyError("IncompleteBody", f"The body has {len(content)} bytes, its headers say {length!r}.")
    return content, trailers


def verify_digests(body: bytes, headers: Mapping[str, str]) -> None:
    """Compare a body with the checksums among its headers.

    Raises:
        BodyError: One of them differs, or is none.
    """
    for name, compute in _DIGESTS.items():
        sent = headers.get(name)
        if sent is None:
            continue
        try:
            expected = base64.b64decode(sent, validate=True)
        except binascii.Error as error:
            raise BodyError("InvalidRequest", f"Value for {name} header is invalid.") from error
        if not hmac.compare_digest(expected, compute(body)):
            title = name.removeprefix(_CHECKSUM).upper().replace("CONTENT-", "Content-")
            raise BodyError("BadDigest", f"The {title} you specified did not match the calculated checksum.")


class _ChunkReader:
    """Reads the frames of a body; `signed` is None where chunks have no signatures."""

    def __init__(self, body: bytes, signed: Signed | None) -> None:
        self._stream = io.BytesIO(body)
        self._signed = signed
        self._previous = signed.signature if signed else ""

    def read_chunks(self) -> bytes:
        """Return the content. Raises ValueError for a broken frame."""
        content = bytearray()
        while True:
            size, _, extension = self._line().partition(";")
            chunk = self._stream.read(int(size, 16))
            if len(chunk) != int(size, 16):
                raise ValueError("a chunk ends early")
            self._verify(f"{_HMAC}-PAYLOAD", extension.removeprefix("chunk-signature="), chunk)
            if not chunk:
                return bytes(content)
            content += chunk
            if self._line():
                raise ValueError("a chunk is longer than it says")

    def read_trailers(self) -> dict[str, str]:
        """Return the headers behind the last chunk. Raises ValueError for a broken one."""
        trailers: dict[str, str] = {}
        while line := self._line():
            name, colon, value = line.partition(":")
            if not colon:
                raise ValueError("a trailing header has no colon")
            trailers[name.strip().lower()] = value.strip()
        signature = trailers.pop("x-amz-trailer-signature", "")
        text = "".join(f"{name}:{value}\n" for name, value in sorted(trailers.items()))
        self._verify(f"{_HMAC}-TRAILER", signature, text.encode())
        return trailers

    def _line(self) -> str:
        return self._stream.readline().rstrip(b"\r\n").decode("ascii")

    def _verify(self, algorithm: str, signature: str, content: bytes) -> None:
        signed = self._signed
        if signed is None:
            return
        digests = [_EMPTY] if algorithm.endswith("-PAYLOAD") else []
        digests.append(hashlib.sha256(content).hexdigest())
        text = "\n".join((algorithm, signed.time, signed.scope, self._previous, *digests))
        expected = sign(text, scope=signed.scope, secret=signed.secret)
        if not hmac.compare_digest(expected, signature):
            raise BodyError("SignatureDoesNotMatch", "The signature of a chunk does not match.", 403)
        self._previous = expected


def _crc32(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4, "big")


def _crc32c(body: bytes) -> bytes:
    from awscrt import checksums  # noqa: PLC0415 - its library of 12 MB is of use to few requests

    return int(checksums.crc32c(body)).to_bytes(4, "big")


def _crc64nvme(body: bytes) -> bytes:
    from awscrt import checksums  # noqa: PLC0415 - as above

    return int(checksums.crc64nvme(body)).to_bytes(8, "big")


def _sha1(body: bytes) -> bytes:
    return hashlib.sha1(body, usedforsecurity=False).digest()


def _sha256(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


CHECKSUMS: Mapping[str, Callable[[bytes], bytes]] = {
    "CRC32": _crc32,
    "CRC32C": _crc32c,
    "CRC64NVME": _crc64nvme,
    "SHA1": _sha1,
    "SHA256": _sha256,
}
_DIGESTS = {
    "content-md5": content_md5,
    **{f"{_CHECKSUM}{name.lower()}": compute for name, compute in CHECKSUMS.items()},
}
