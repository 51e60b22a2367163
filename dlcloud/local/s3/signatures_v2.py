"""Signatures of version 2 in the query: what boto3 and the AWS CLI presign by default.

Source: S3 developer guide (2006-03-01), "Signing and authenticating REST requests", "Query string request
authentication alternative".
"""

import base64
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

from dlcloud.local.api.signature import AuthError, SignatureError

NAMES = ("AWSAccessKeyId", "Signature", "Expires", "x-amz-security-token")
"""The parts of a query that carry the signature."""
_DIGITS = 12  # of a time
_RESOURCES = frozenset(
    {
        *("accelerate", "acl", "cors", "defaultObjectAcl", "delete", "lifecycle", "location", "logging"),
        *("notification", "object-lock", "partNumber", "policy", "replication", "requestPayment", "restore"),
        *("select", "select-type", "storageClass", "tagging", "torrent", "uploadId", "uploads", "versionId"),
        *("versioning", "versions", "website", "analytics", "inventory", "metrics", "response-cache-control"),
        *("response-content-disposition", "response-content-encoding", "response-content-language"),
        *("response-content-type", "response-expires"),
    }
)
"""The parts of a query that are signed."""


def is_presigned(environ: Mapping[str, Any]) -> bool:
    """True if a request has a signature of version 2 in its query, and none in its header."""
    names = {part.partition("=")[0] for part in environ.get("QUERY_STRING", "").split("&")}
    return {*NAMES[:3]} <= names and "HTTP_AUTHORIZATION" not in environ


def key_id_of(environ: Mapping[str, Any]) -> str:
    """Return the access key of such a request."""
    return str(dict(parse_qsl(environ["QUERY_STRING"])).get("AWSAccessKeyId", ""))


def verify_presigned(environ: Mapping[str, Any], path: str, secret: str) -> None:
    """Verify the signature of a request whose path is in path style, as it was encoded.

    Raises:
        SignatureError: It is malformed, late or wrong.
    """
    values = dict(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
    expires = values["Expires"]
    if not expires.isdigit() or len(expires) > _DIGITS:
        raise SignatureError(AuthError.INCOMPLETE, "Expires is no time in seconds.")
    if datetime.now(UTC).timestamp() > int(expires):
        raise SignatureError(AuthError.MISSING, "Request has expired")
    lines = [
        environ["REQUEST_METHOD"],
        environ.get("HTTP_CONTENT_MD5", ""),
        environ.get("CONTENT_TYPE", ""),
        expires,
        *_amz_headers(environ, values),
        path + _signed_query(environ["QUERY_STRING"]),
    ]
    if not hmac.compare_digest(sign_v2("\n".join(lines), secret), values["Signature"]):
        raise SignatureError(
            AuthError.WRONG, "The request signature we calculated does not match the signature you provided."
        )


def sign_v2(text: str, secret: str) -> str:
    """Return the signature of a text, in base64."""
    return base64.b64encode(hmac.digest(secret.encode(), text.encode(), "sha1")).decode()


def _amz_headers(environ: Mapping[str, Any], values: Mapping[str, str]) -> list[str]:
    headers = {
        name[5:].lower().replace("_", "-"): " ".join(str(value).split())
        for name, value in environ.items()
        if name.startswith("HTTP_X_AMZ_")
    }
    # The checksums and hashes that newer clients add are not of the time of this version.
    token = values.get("x-amz-security-token")
    headers |= {"x-amz-security-token": token} if token else {}
    return [f"{name}:{value}" for name, value in sorted(headers.items())]


def _signed_query(query: str) -> str:
    pairs = [part.partition("=") for part in query.split("&") if part.partition("=")[0] in _RESOURCES]
    parts = [f"{name}={unquote(value)}" if equals else name for name, equals, value in sorted(pairs)]
    return f"?{'&'.join(parts)}" if parts else ""
