"""Read a request to S3: its bucket and key, the operation, and the IAM actions that it needs."""

import hashlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote
from xml.etree import ElementTree as ET

from dlcloud.local.api.call import Call
from dlcloud.local.api.policy import AccessRequest

ARN = "arn:aws:s3:::"
OWNER = "123456789012"  # of all buckets: moto's account
# Of a host: the name that stands before it is a bucket.
_HOST = re.compile(r"(?P<bucket>[a-z0-9][a-z0-9.-]+?)\.(?:s3\.)?localhost(?::\d+)?")
_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
_BUCKET_NAME = re.compile(r"[A-Za-z0-9._-]+")
_SCOPE_PARTS = 5  # key/date/region/service/aws4_request
_PARAMETERS = frozenset(
    {
        "bucket-region",
        "continuation-token",
        "delimiter",
        "encoding-type",
        "fetch-owner",
        "key-marker",
        "list-type",
        "marker",
        "max-buckets",
        "max-keys",
        "max-parts",
        "max-uploads",
        "part-number-marker",
        "partNumber",
        "prefix",
        "start-after",
        "upload-id-marker",
        "version-id-marker",
        "versionId",
        "x-id",
    }
)
"""Names of a query that choose no operation."""
_OBJECT = {
    ("GET", ""): ("GetObject", "s3:GetObject"),
    ("GET", "acl"): ("GetObjectAcl", "s3:GetObjectAcl"),
    ("GET", "attributes"): ("GetObjectAttributes", "s3:GetObjectAttributes"),
    ("GET", "tagging"): ("GetObjectTagging", "s3:GetObjectTagging"),
    ("GET", "uploadId"): ("ListParts", "s3:ListMultipartUploadParts"),
    ("HEAD", ""): ("HeadObject", "s3:GetObject"),
    ("PUT", ""): ("PutObject", "s3:PutObject"),
    ("PUT", "tagging"): ("PutObjectTagging", "s3:PutObjectTagging"),
    ("PUT", "uploadId"): ("UploadPart", "s3:PutObject"),
    ("DELETE", ""): ("DeleteObject", "s3:DeleteObject"),
    ("DELETE", "tagging"): ("DeleteObjectTagging", "s3:DeleteObjectTagging"),
    ("DELETE", "uploadId"): ("AbortMultipartUpload", "s3:AbortMultipartUpload"),
    ("POST", "uploads"): ("CreateMultipartUpload", "s3:PutObject"),
    ("POST", "uploadId"): ("CompleteMultipartUpload", "s3:PutObject"),
}
_BUCKET = {
    ("GET", ""): ("ListObjects", "s3:ListBucket"),
    ("GET", "encryption"): ("GetBucketEncryption", "s3:GetEncryptionConfiguration"),
    ("GET", "location"): ("GetBucketLocation", "s3:GetBucketLocation"),
    ("GET", "publicAccessBlock"): ("GetPublicAccessBlock", "s3:GetBucketPublicAccessBlock"),
    ("GET", "tagging"): ("GetBucketTagging", "s3:GetBucketTagging"),
    ("GET", "uploads"): ("ListMultipartUploads", "s3:ListBucketMultipartUploads"),
    ("GET", "versioning"): ("GetBucketVersioning", "s3:GetBucketVersioning"),
    ("GET", "versions"): ("ListObjectVersions", "s3:ListBucketVersions"),
    ("HEAD", ""): ("HeadBucket", "s3:ListBucket"),
    ("PUT", ""): ("CreateBucket", "s3:CreateBucket"),
    ("PUT", "encryption"): ("PutBucketEncryption", "s3:PutEncryptionConfiguration"),
    ("PUT", "publicAccessBlock"): ("PutPublicAccessBlock", "s3:PutBucketPublicAccessBlock"),
    ("PUT", "tagging"): ("PutBucketTagging", "s3:PutBucketTagging"),
    ("PUT", "versioning"): ("PutBucketVersioning", "s3:PutBucketVersioning"),
    ("DELETE", ""): ("DeleteBucket", "s3:DeleteBucket"),
    ("POST", "delete"): ("DeleteObjects", "s3:DeleteObject"),
}
_SERVICE = {("GET", ""): ("ListBuckets", "s3:ListAllMyBuckets")}
_VERSIONED = {
    "s3:GetObject": "s3:GetObjectVersion",
    "s3:GetObjectAttributes": "s3:GetObjectVersionAttributes",
    "s3:GetObjectTagging": "s3:GetObjectVersionTagging",
    "s3:DeleteObject": "s3:DeleteObjectVersion",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What a request is addressed to; `path` is in path style, as it was encoded."""

    bucket: str
    key: str
    path: str

    @property
    def is_plain(self) -> bool:
        """True if moto finds this bucket: it takes what comes first in the path, as it is written there."""
        if not self.bucket:
            return not self.key
        return _BUCKET_NAME.fullmatch(self.bucket) is not None and self.path.startswith(f"/{self.bucket}")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Call(Call):
    """A request to S3. `iam_action` is empty for an operation that is not implemented."""

    bucket: str
    key: str
    path: str
    iam_action: str
    copy_source: str = ""

    @property
    def is_reading(self) -> bool:
        """True if the operation changes nothing."""
        return self.action.startswith(("Get", "Head", "List"))

    def access_requests(self) -> Iterator[AccessRequest]:
        """Yield the requests to IAM that must be allowed.

        Source: S3 user guide, "Required permissions for Amazon S3 API operations".
        """
        if self.action == "DeleteObjects":
            for key, is_version in _deleted(self.body):
                action = "s3:DeleteObjectVersion" if is_version else "s3:DeleteObject"
                yield AccessRequest(action=action, resource=f"{ARN}{self.bucket}/{key}")
            return
        action = self.iam_action
        if self.key and self.parameter("versionId"):
            action = _VERSIONED.get(action, action)
        yield AccessRequest(action=action, resource=self._resource(), context=self._context())
        if self.action == "GetObjectAttributes":
            yield AccessRequest(action="s3:GetObject", resource=self._resource())
        if self.copy_source:
            source = unquote(self.copy_source.partition("?")[0]).lstrip("/")
            yield AccessRequest(action="s3:GetObject", resource=ARN + source)

    def list_request(self) -> AccessRequest:
        """Return the request to list the bucket: without it a missing object looks forbidden.

        Source: S3 API reference, GetObject, "Permissions".
        """
        return AccessRequest(action="s3:ListBucket", resource=ARN + self.bucket)

    def _resource(self) -> str:
        if not self.bucket:
            return "*"
        return f"{ARN}{self.bucket}/{self.key}" if self.key else ARN + self.bucket

    def _context(self) -> Mapping[str, list[str]]:
        context = {"s3:ResourceAccount": [OWNER]}
        if self.iam_action in {"s3:ListBucket", "s3:ListBucketVersions"}:
            names = ("prefix", "delimiter", "max-keys")
            context |= {f"s3:{name}": [value] for name, value in self.parameters if name in names}
        return context


def is_s3(environ: Mapping[str, Any]) -> bool:
    """True if a request is signed for S3, in its header or in its query, or in a way that S3 alone had."""
    if is_old_signature(environ) and environ["PATH_INFO"].strip("/"):
        return True
    scope = _scope(environ)
    return len(scope) == _SCOPE_PARTS and scope[3] == "s3"


def is_old_signature(environ: Mapping[str, Any]) -> bool:
    """True for a signature of version 2, in the query or the header, and for the form of a presigned POST."""
    authorization = environ.get("HTTP_AUTHORIZATION", "")
    if authorization:
        return str(authorization).startswith("AWS ")
    is_form = environ.get("CONTENT_TYPE", "").startswith("multipart/form-data")
    return is_form or "AWSAccessKeyId=" in environ.get("QUERY_STRING", "")


def read_s3_call(environ: Mapping[str, Any], body: bytes) -> S3Call:
    """Read a request that is signed for S3."""
    query = tuple(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
    address = _address(environ)
    table = _OBJECT if address.key else _BUCKET if address.bucket else _SERVICE
    names = [
        name for name, _ in query if name not in _PARAMETERS and not name.startswith(("X-Amz-", "response-"))
    ]
    # Of two operations or values moto might take the other one, and it reads a form as a query: all are none.
    operation = "&".join(names)
    if len({name for name, _ in query}) < len(query):
        operation = f"{operation} twice"
    if environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower() in _FORMS:
        operation = f"{operation} with a form"
    action, iam_action = table.get((environ["REQUEST_METHOD"], operation), ("", ""))
    if not address.is_plain:
        action, iam_action = "", ""
    presigned = dict(query)
    scope = _scope(environ)
    key_id, region = (scope[0], scope[2]) if len(scope) == _SCOPE_PARTS else ("", "")
    return S3Call(
        service="s3",
        region=region,
        action=action or f"{environ['REQUEST_METHOD']} {operation}".strip(),
        body=body,
        parameters=query,
        is_json=False,
        access_key=key_id,
        session_token=environ.get("HTTP_X_AMZ_SECURITY_TOKEN") or presigned.get("X-Amz-Security-Token", ""),
        bucket=address.bucket,
        key=address.key,
        path=address.path,
        iam_action=iam_action,
        copy_source=environ.get("HTTP_X_AMZ_COPY_SOURCE", ""),
    )


def content_md5(body: bytes) -> bytes:
    """Return the MD5 of a body."""
    return hashlib.md5(body, usedforsecurity=False).digest()


def _of_awscrt(name: str, length: int) -> Callable[[bytes], bytes]:
    def compute(body: bytes) -> bytes:
        from awscrt import checksums  # noqa: PLC0415 - its library of 12 MB is of use to few requests

        return int(getattr(checksums, name)(body)).to_bytes(length, "big")

    return compute


CHECKSUMS: Mapping[str, Callable[[bytes], bytes]] = {
    "CRC32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
    "CRC32C": _of_awscrt("crc32c", 4),
    "CRC64NVME": _of_awscrt("crc64nvme", 8),
    "SHA1": lambda body: hashlib.sha1(body, usedforsecurity=False).digest(),
    "SHA256": lambda body: hashlib.sha256(body).digest(),
}


def _scope(environ: Mapping[str, Any]) -> list[str]:
    """Return key id, date, region, service and "aws4_request" of a signature, without verifying it."""
    _, _, rest = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")
    text = rest.partition(",")[0]
    if not text and "X-Amz-Credential=" in environ.get("QUERY_STRING", ""):
        text = dict(parse_qsl(environ["QUERY_STRING"])).get("X-Amz-Credential", "")
    return str(text).split("/")


def _address(environ: Mapping[str, Any]) -> Address:
    """Read bucket and key of both styles: by the path, and by the host."""
    path = environ["RAW_URI"].partition("?")[0]
    match = _HOST.fullmatch(environ.get("HTTP_HOST", ""))
    if match is not None and match["bucket"] != "s3":
        path = f"/{match['bucket']}{path}"
    bucket, _, key = path.removeprefix("/").partition("/")
    return Address(bucket=unquote(bucket), key=unquote(key), path=path)


def _deleted(body: bytes) -> list[tuple[str, bool]]:
    """Return the keys that a DeleteObjects request names, each with whether it is of a version."""
    try:
        root = ET.fromstring(body)  # noqa: S314 - expat limits how far entities expand
    except ET.ParseError:
        return []
    named = []
    for item in root.iter():
        if item.tag.rpartition("}")[2] == "Object":
            fields = {child.tag.rpartition("}")[2]: child.text or "" for child in item}
            named.append((fields.get("Key", ""), "VersionId" in fields))
    return named
