"""Uploads by a form (presigned POST): a policy that is signed says what may be sent.

Source: S3 API reference, "POST Object", "Creating a POST policy", "Authenticating requests in browser-based
uploads using POST".
"""

import base64
import hmac
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

from werkzeug.formparser import parse_form_data

from dlcloud.local.api.call import Reply
from dlcloud.local.api.signature import ALGORITHM, AuthError, SignatureError, sign
from dlcloud.local.s3.signatures_v2 import sign_v2

_UNCHECKED = frozenset({"policy", "signature", "x-amz-signature", "awsaccesskeyid", "file"})
_STATUSES = {"200": HTTPStatus.OK, "201": HTTPStatus.CREATED}
_SCOPE_PARTS = 5  # key/date/region/service/aws4_request


@dataclass(frozen=True, slots=True, kw_only=True)
class FormUpload:
    """An upload; the names of fields are in lower case."""

    bucket: str
    fields: Mapping[str, str]
    content: bytes

    @property
    def key(self) -> str:
        return self.fields.get("key", "").replace("${filename}", self.fields.get("file", ""))

    @property
    def key_id(self) -> str:
        """The access key that has signed, without verifying it."""
        scope = self.fields.get("x-amz-credential", "")
        return scope.partition("/")[0] or self.fields.get("awsaccesskeyid", "")

    @property
    def region(self) -> str:
        scope = self.fields.get("x-amz-credential", "").split("/")
        return scope[2] if len(scope) == _SCOPE_PARTS else ""


def is_form(environ: Mapping[str, Any]) -> bool:
    """True if a request is an upload by a form."""
    is_multipart = environ.get("CONTENT_TYPE", "").startswith("multipart/form-data")
    return environ["REQUEST_METHOD"] == "POST" and is_multipart and "HTTP_AUTHORIZATION" not in environ


def read_form(environ: Mapping[str, Any], bucket: str) -> FormUpload:
    """Read a form."""
    _, form, files = parse_form_data({**environ})
    fields = {name.lower(): value for name, value in form.items()}
    file = files.get("file")
    content = file.read() if file is not None else fields.get("file", "").encode()
    fields["file"] = (file.filename or "") if file is not None else ""
    return FormUpload(bucket=bucket, fields=fields, content=content)


def verify_form(upload: FormUpload, secret: str | None) -> None:
    """Verify the policy of an upload, and the upload by it.

    Raises:
        SignatureError: The signature is missing or wrong, or the policy does not allow the upload.
    """
    policy = upload.fields.get("policy", "")
    if not policy or not upload.key_id:
        raise SignatureError(AuthError.MISSING, "Access Denied")
    if secret is None:
        raise SignatureError(AuthError.UNKNOWN_KEY, "The AWS Access Key Id you provided does not exist.")
    if not hmac.compare_digest(*_signatures(upload, policy, secret)):
        raise SignatureError(AuthError.WRONG, "The signature of the policy does not match.")
    try:
        document = json.loads(base64.b64decode(policy, validate=True))
        expires = datetime.fromisoformat(document["expiration"])
        conditions = [_read_condition(condition) for condition in document["conditions"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SignatureError(AuthError.INCOMPLETE, "Invalid Policy: it cannot be read.") from error
    if datetime.now(UTC) > (expires if expires.tzinfo else expires.replace(tzinfo=UTC)):
        raise SignatureError(AuthError.MISSING, "Invalid according to Policy: Policy expired.")
    values = {**upload.fields, "bucket": upload.bucket, "key": upload.key}
    for name, holds in conditions:
        if not holds(str(len(upload.content)) if name == "content-length" else values.get(name, "")):
            raise SignatureError(
                AuthError.MISSING, f"Invalid according to Policy: Policy Condition failed: {name}"
            )
    named = {name for name, _ in conditions} | _UNCHECKED
    if extra := [name for name in upload.fields if name not in named and not name.startswith("x-ignore-")]:
        message = f"Invalid according to Policy: Extra input fields: {', '.join(sorted(extra))}"
        raise SignatureError(AuthError.MISSING, message)


def put_environ(environ: Mapping[str, Any], upload: FormUpload) -> dict[str, Any]:
    """Return the request that puts the object which the form uploads."""
    headers = {
        "HTTP_" + name.upper().replace("-", "_"): value
        for name, value in upload.fields.items()
        if name.startswith("x-amz-meta-") or name in ("cache-control", "content-disposition", "x-amz-tagging")
    }
    kept = {name: value for name, value in environ.items() if not name.startswith("HTTP_CONTENT_")}
    return {
        **kept,
        **headers,
        "REQUEST_METHOD": "PUT",
        "CONTENT_TYPE": upload.fields.get("content-type", "binary/octet-stream"),
        "QUERY_STRING": "",
        "RAW_URI": f"/{upload.bucket}/{quote(upload.key, safe='/-_.~')}",
        "HTTP_HOST": f"127.0.0.1:{environ['SERVER_PORT']}",
        "wsgi.input": io.BytesIO(upload.content),
    }


def form_reply(upload: FormUpload, reply: Reply) -> Reply:
    """Return S3's answer to a form whose object was put with an answer."""
    if reply.status != HTTPStatus.OK:
        return reply
    place = f"/{upload.bucket}/{quote(upload.key)}"
    tag = next((value for name, value in reply.headers if name.lower() == "etag"), "")
    headers = (("ETag", tag), ("Location", place))
    if target := upload.fields.get("success_action_redirect"):
        query = f"bucket={quote(upload.bucket)}&key={quote(upload.key)}&etag={quote(tag)}"
        joint = "&" if "?" in target else "?"
        return Reply(status=303, headers=(("ETag", tag), ("Location", target + joint + query)), body=b"")
    status = _STATUSES.get(upload.fields.get("success_action_status", ""), HTTPStatus.NO_CONTENT)
    body = (
        f"<PostResponse><Location>{escape(place)}</Location><Bucket>{escape(upload.bucket)}</Bucket>"
        f"<Key>{escape(upload.key)}</Key><ETag>{escape(tag)}</ETag></PostResponse>"
    )
    return Reply(
        status=int(status), headers=headers, body=body.encode() if status is HTTPStatus.CREATED else b""
    )


def _signatures(upload: FormUpload, policy: str, secret: str) -> tuple[str, str]:
    """Return the right signature and the one that was sent."""
    fields = upload.fields
    if "x-amz-signature" not in fields:
        return sign_v2(policy, secret), fields.get("signature", "")
    key_id, _, scope = fields.get("x-amz-credential", "").partition("/")
    if fields.get("x-amz-algorithm") != ALGORITHM or not key_id or "/s3/" not in scope:
        raise SignatureError(AuthError.INCOMPLETE, "The signature of the policy is malformed.")
    return sign(policy, scope=scope, secret=secret), fields["x-amz-signature"]


def _read_condition(condition: Any) -> tuple[str, Callable[[str], bool]]:  # noqa: ANN401 - JSON
    """Return the field that a condition is about, and whether a value satisfies it."""
    if isinstance(condition, dict):
        ((name, value),) = condition.items()
        return str(name).lower(), lambda given: given == str(value)
    kind, first, second = condition
    if kind == "content-length-range":
        return "content-length", lambda value: int(first) <= int(value) <= int(second)
    name = str(first).removeprefix("$").lower()
    if kind == "starts-with":
        return name, lambda value: value.startswith(str(second))
    if kind == "eq":
        return name, lambda value: value == str(second)
    raise ValueError(kind)
