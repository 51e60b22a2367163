"""Decode bodies that come in chunks, and verify the checksums that were sent with them.

Source: S3 API reference, "Signature calculations for the authorization header: transferring payload in
multiple chunks"; S3 user guide, "Checking object integrity for data uploads in Amazon S3".
"""

import base64
import binascii
import hashlib
import hmac
import io
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from dlcloud.local.api.signature import sign
from dlcloud.local.s3.calls import content_md5
from dlcloud.local.s3.signatures import STREAMING, Signed

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
