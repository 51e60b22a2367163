"""The layer before moto's S3: signatures, bodies in chunks, checksums, regions, and errors in S3's words.

Source: S3 API reference, "Authenticating Requests (AWS Signature Version 4)".
"""

import base64
import binascii
import hashlib
import hmac
import io
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from dlcloud.local.api.call import Reply
from dlcloud.local.api.signature import AuthError, Claim, SignatureError, read_claim, verify_claim
from dlcloud.local.s3.calls import CHECKSUMS, S3Call, content_md5, is_old_signature

log = logging.getLogger(__name__)
_ANY_REGION = frozenset({"CreateBucket", "GetBucketLocation", "ListBuckets"})
_REGION = "x-amz-bucket-region"
_HEADERS = ("HTTP_CONTENT_MD5", "HTTP_X_AMZ_CHECKSUM_")


class S3Front:
    """Answers requests to S3. moto's S3 is loaded at the first one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._app: Callable[..., Iterable[bytes]] | None = None

    def head_refusal(self, call: S3Call, environ: dict[str, Any], secret: str | None) -> Reply | None:
        """Verify the signature of a request whose body has not been read; return the reply if it is wrong."""
        try:
            verify(call, environ, secret, is_whole=False)
        except SignatureError as error:
            return _signature_reply(call, error)
        return None

    def refusal(self, call: S3Call, environ: dict[str, Any], secret: str | None) -> Reply | None:
        """Verify a request and make it one that moto reads; return the reply if it is refused."""
        try:
            verify(call, environ, secret)
            body, trailers = decode_body(call.body, environ)
            _rewrite(call, environ, body, trailers)
            if call.iam_action:
                verify_digests(body, _checksums(environ))
        except SignatureError as error:
            return _signature_reply(call, error)
        except BodyError as error:
            return error_reply(call, error.code, str(error), error.status)
        if not call.iam_action:
            message = f"The local EC2 does not implement {call.action!r} of S3."
            return error_reply(call, "NotImplemented", message, HTTPStatus.NOT_IMPLEMENTED)
        return self._wrong_region(call)

    def answer(self, environ: dict[str, Any]) -> Reply:
        """Let moto answer a request that is allowed."""
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> None:
            log.debug("moto answers %s%s", status, " after an exception" if exc_info else "")
            started.append((status, headers))

        body = b"".join(self._loaded()(environ, start_response))
        status, headers = started[-1]
        return Reply(status=int(status.split(" ", 1)[0]), headers=tuple(headers), body=body)

    def with_region(self, call: S3Call, reply: Reply) -> Reply:
        """Return the answer to HeadBucket with the bucket's region, which a denial states, too."""
        from dlcloud.local.s3.moto_s3 import bucket_region  # noqa: PLC0415 - at the first request

        region = bucket_region(call.bucket) if call.action == "HeadBucket" else None
        if region is None or any(name.lower() == _REGION for name, _ in reply.headers):
            return reply
        return Reply(status=reply.status, headers=(*reply.headers, (_REGION, region)), body=reply.body)

    def _loaded(self) -> Callable[..., Iterable[bytes]]:
        from dlcloud.local.s3.moto_s3 import create_s3_app  # noqa: PLC0415 - at the first request

        with self._lock:
            if self._app is None:
                self._app = create_s3_app()
            return self._app

    def _wrong_region(self, call: S3Call) -> Reply | None:
        """Return S3's answer to a signature for another region than the bucket's.

        Source: S3 API reference, "Error responses": AuthorizationHeaderMalformed.
        """
        from dlcloud.local.s3.moto_s3 import bucket_region  # noqa: PLC0415 - at the first request

        region = bucket_region(call.bucket)
        if not call.region or region in (None, call.region) or call.action in _ANY_REGION:
            return None
        wrong = f"the region '{call.region}' is wrong; expecting '{region}'"
        message = f"The authorization header is malformed; {wrong}"
        code, element = "AuthorizationHeaderMalformed", f"<Region>{region}</Region>"
        reply = error_reply(call, code, message, HTTPStatus.BAD_REQUEST, element)
        headers = (*reply.headers, (_REGION, str(region)))
        return Reply(status=reply.status, headers=headers, body=reply.body)


def error_reply(call: S3Call, code: str, message: str, status: int, more: str = "") -> Reply:
    """Return an error in the form that clients of S3 read."""
    resource = f"<Resource>{escape(call.path)}</Resource><RequestId>{uuid.uuid4()}</RequestId>"
    text = f"<Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message>{more}{resource}</Error>"
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
    return Reply(status=int(status), headers=(("Content-Type", "application/xml"),), body=body)


def _signature_reply(call: S3Call, error: SignatureError) -> Reply:
    refused = error.error.refuse(call, str(error))
    return error_reply(call, refused.code, refused.message, refused.status)


def _rewrite(call: S3Call, environ: dict[str, Any], body: bytes, trailers: dict[str, str]) -> None:
    """Make the request one in path style, signed in its header, whose body is whole."""
    query = "&".join(part for part in environ["QUERY_STRING"].split("&") if not part.startswith("X-Amz-"))
    for name, value in trailers.items():
        environ["HTTP_" + name.upper().replace("-", "_")] = value
    encodings = [name.strip() for name in environ.pop("HTTP_CONTENT_ENCODING", "").split(",")]
    if kept := [name for name in encodings if name not in ("", "aws-chunked")]:
        environ["HTTP_CONTENT_ENCODING"] = ",".join(kept)
    # moto would keep it as metadata.
    environ.pop("HTTP_X_AMZ_CONTENT_SHA256", None)
    for name in [name for name in environ if name.startswith("HTTP_X_MOTO")]:
        del environ[name]  # such a header names another account
    environ.pop("HTTP_X_AMZ_TARGET", None)
    environ.pop("HTTP_TRANSFER_ENCODING", None)
    scope = f"{call.access_key}/20000101/{call.region or 'us-east-1'}/s3/aws4_request"
    for name in CHECKSUMS:
        if f"HTTP_X_AMZ_CHECKSUM_{name}" in environ:
            # moto keeps a checksum only if this header names its algorithm.
            environ.setdefault("HTTP_X_AMZ_SDK_CHECKSUM_ALGORITHM", name)
    environ.update(
        {
            "HTTP_AUTHORIZATION": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0",
            "HTTP_HOST": f"127.0.0.1:{environ['SERVER_PORT']}",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_LENGTH": str(len(body)),
            "PATH_INFO": f"/{call.bucket}/{call.key}".encode().decode("latin-1"),
            "QUERY_STRING": query,
            "RAW_URI": f"{call.path}?{query}",
            "wsgi.input": io.BytesIO(body),
        }
    )
    if not call.bucket:
        environ["PATH_INFO"] = "/"


def _checksums(environ: dict[str, Any]) -> dict[str, str]:
    return {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith(_HEADERS)
    }


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


_DIGESTS = {
    "content-md5": content_md5,
    **{f"{_CHECKSUM}{name.lower()}": compute for name, compute in CHECKSUMS.items()},
}
