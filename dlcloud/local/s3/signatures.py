"""Verify requests to S3: the signature, the chunks of a body, and its checksums.

Source: S3 API reference, "Authenticating Requests (AWS Signature Version 4)".
"""

import base64
import binascii
import hashlib
import hmac
import io
import zlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote

from dlcloud.local.api.signature import AuthError, Claim, SignatureError, read_claim, verify_claim
from dlcloud.local.s3.calls import S3Call, content_md5, is_old_signature

UNSIGNED = "UNSIGNED-PAYLOAD"
_STREAMING, _CHUNKS = "STREAMING-", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_WINDOW = timedelta(minutes=15)
_CHECKSUM = "x-amz-checksum-"


def verify(call: S3Call, environ: Mapping[str, Any], secret: str | None, *, is_whole: bool = True) -> None:
    """Verify the signature of a request; `is_whole` is False if its body was not read yet.

    Raises:
        SignatureError: It is missing, malformed, late or wrong, or of an unknown key.
    """
    if is_old_signature(environ):
        message = "The local EC2 takes signatures of version 4 ('s3v4'), and no presigned POST."
        raise SignatureError(AuthError.UNSUPPORTED, message)
    claim = read_claim(environ)
    path = quote(unquote(environ["RAW_URI"].partition("?")[0]), safe="/-_.~")
    payload = _payload(call, environ, claim, is_whole=is_whole)
    verify_claim(claim, environ, secret, path=path, payload=payload, window=_WINDOW)


def _payload(call: S3Call, environ: Mapping[str, Any], claim: Claim, *, is_whole: bool) -> str:
    """Return what stands for the body in the signed text."""
    sent = str(environ.get("HTTP_X_AMZ_CONTENT_SHA256", ""))
    if claim.lifetime is not None:
        return sent or UNSIGNED
    if not sent:
        message = "Missing required header for this request: x-amz-content-sha256"
        raise SignatureError(AuthError.INCOMPLETE, message)
    is_hash = is_whole and sent != UNSIGNED and not sent.startswith(_STREAMING)
    if is_hash and not hmac.compare_digest(sent.encode(), hashlib.sha256(call.body).hexdigest().encode()):
        message = "The provided 'x-amz-content-sha256' header does not match what was computed."
        raise SignatureError(AuthError.WRONG, message)
    return sent


class BodyError(Exception):
    """A body is not what its headers say; `code` is S3's."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


def decode_body(body: bytes, environ: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Return a body without its chunks' frames, and the trailing headers.

    Raises:
        BodyError: A frame or a length is wrong, or its chunks are signed, as no client of dlcloud's does it.
    """
    mode = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
    if not mode.startswith(_STREAMING):
        return body, {}
    if mode != _CHUNKS:
        raise BodyError("NotImplemented", f"The local EC2 does not read bodies of {mode}.", 501)
    try:
        content, trailers = _read_chunks(io.BytesIO(body))
    except ValueError as error:
        raise BodyError("IncompleteBody", "The request body terminated unexpectedly.") from error
    length = environ.get("HTTP_X_AMZ_DECODED_CONTENT_LENGTH", "")
    if length != str(len(content)):
        raise BodyError("IncompleteBody", f"The body has {len(content)} bytes, its headers say {length!r}.")
    return content, trailers


def _read_chunks(stream: io.BytesIO) -> tuple[bytes, dict[str, str]]:
    """Return the content of chunks, and the headers behind them. Raises ValueError for a broken frame."""
    content, trailers = bytearray(), {}

    def line() -> str:
        return stream.readline().rstrip(b"\r\n").decode("ascii")

    while size := int(line().partition(";")[0], 16):
        chunk = stream.read(size)
        if len(chunk) != size or line():
            raise ValueError("a chunk ends early, or is longer than it says")
        content += chunk
    while trailer := line():
        name, colon, value = trailer.partition(":")
        if not colon:
            raise ValueError("a trailing header has no colon")
        trailers[name.strip().lower()] = value.strip()
    return bytes(content), trailers


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
