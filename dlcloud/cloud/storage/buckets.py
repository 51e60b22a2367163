"""S3, as far as the launcher asks it: data, the checkpoints of a training, results, and the shared budget.

Instances read and write buckets themselves (`templates/storage.py`); the launcher asks what a prefix holds,
how far a training's checkpoints are, and exchanges small objects with instances of AWS Batch. `S3Ledger` is
one JSON document that several dlcloud homes change; no home overwrites the change of another.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from botocore.exceptions import ClientError

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import translate_errors
from dlcloud.model.errors import CloudError
from dlcloud.recipe.data import DataSet, split_uri
from dlcloud.system.parallel import fan_out

MANIFEST = re.compile(r"manifest-(?P<step>\d{12})-[0-9a-f]{32}-(?P<size>\d+)\.json")
UPLOADED = re.compile(r"step-\d{12}-[0-9a-f]{32}\.pt|[0-9a-f]{64}")
"""The names that trainer.uploader gives, as the checkpoint of a manifest is `step-STEP-DIGEST.pt`, and those
that `templates/checkpoints.py` gives."""
STATE = re.compile(r"state-(\d{1,15})\.json")
GONE = {"NoSuchUpload"}
LOCAL_SHELL = 'eval "$(dlcloud local start | grep ^export)"; '
"""Lets a shell's AWS clients use the local EC2."""
MOST_COPIED = 5 * 2**30
PART = 2**30
PARTS_AT_ONCE = 10
"""S3 copies an object of more than 5 GiB in parts. Source: S3 API reference, CopyObject."""
TRIES = 12
"""Attempts at a change while others change it, too."""
CONFLICTS = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
MISSING = {"NoSuchKey", "404"}


Stored = tuple[int, Any]
"""The bytes of an object, and when it was stored."""


class S3Buckets:
    """Buckets of any region, by the credentials of one."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._regions: dict[str, str] = {}

    def make(self, name: str) -> bool:
        """Create a bucket in the region of these credentials; False if there is one of that name.

        Raises:
            CloudError: It is another account's, or no permission.
        """
        with translate_errors(f"creating the bucket {name} (s3:CreateBucket)"):
            client = self._clients.get("s3")
            if name in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
                return False
            region = client.meta.region_name
            place = {"LocationConstraint": region} if region != "us-east-1" else {}
            client.create_bucket(Bucket=name, **({"CreateBucketConfiguration": place} if place else {}))
        return True

    def describe_prefix(self, uri: str) -> DataSet:
        """Return region, number and size of the files below a prefix.

        Raises:
            CloudError: There is no such bucket, nothing below the prefix, or no permission.
        """
        bucket, prefix = split_uri(uri)
        with translate_errors(f"looking at {uri} (s3:ListBucket)"):
            region = self._region(bucket)
            pages = self._clients.get("s3", region).get_paginator("list_objects_v2")
            sizes = [
                item["Size"]
                for page in pages.paginate(Bucket=bucket, Prefix=_folder(prefix))
                for item in page.get("Contents", ())
                if not item["Key"].endswith("/")
            ]
        if not sizes:
            raise CloudError(f"data: there is nothing below {uri}/", f"aws s3 ls {uri}/")
        return DataSet(uri=uri, region=region, files=len(sizes), size=sum(sizes))

    def mirror(self, source: str, target: str) -> int:
        """Let S3 make a prefix equal to another one with checkpoints; return the bytes that it copied.

        No byte comes here. A manifest is copied after what it names and removed before that, so that it
        never names what is not there. What the source has no more is removed only after a newer manifest
        came: a source that is being emptied takes nothing along.

        Raises:
            CloudError: A bucket is missing, or no permission.
        """
        with translate_errors(f"copying {source} to {target} (s3:GetObject, s3:PutObject, s3:DeleteObject)"):
            there, here = dict(self._objects(source)), dict(self._objects(target))
            region, new = self._known_region(target), _new(there, here)
            for name in sorted(new, key=_is_manifest):
                self._copy(region, _object(source, name), _object(target, name), new[name])
            is_newer = any(_is_manifest(name) for name in new)
            old = here.keys() - there.keys() if is_newer else ()
            for name in sorted(old, key=_is_manifest, reverse=True):
                self._clients.get("s3", region).delete_object(**_object(target, name))
        return sum(new.values())

    def unmirrored(self, source: str, target: str) -> int:
        """Return the bytes that `mirror` would copy now; raises as `newest_step` does."""
        with translate_errors(f"comparing {source} with {target} (s3:ListBucket)"):
            return sum(_new(dict(self._objects(source)), dict(self._objects(target))).values())

    def _objects(self, uri: str) -> Iterator[tuple[str, Stored]]:
        """Yield the path of each object below a prefix, with its size and when it was stored."""
        bucket, prefix = split_uri(uri)
        pages = self._clients.get("s3", self._known_region(uri)).get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=bucket, Prefix=_folder(prefix)):
            for item in page.get("Contents", ()):
                yield item["Key"].removeprefix(_folder(prefix)), (item["Size"], item["LastModified"])

    def _copy(self, region: str, source: dict[str, str], target: dict[str, str], size: int) -> None:
        """Let S3 copy an object to a bucket of a region; a large one in parts."""
        if size <= MOST_COPIED:
            self._clients.get("s3", region).copy_object(**target, CopySource=source)
            return
        begun = self._clients.get("s3", region).create_multipart_upload(**target)
        upload = {**target, "UploadId": begun["UploadId"]}

        def copy_part(begin: int) -> dict[str, Any]:
            number, span = begin // PART + 1, f"bytes={begin}-{min(begin + PART, size) - 1}"
            part = {"PartNumber": number, "CopySource": source, "CopySourceRange": span}
            copied = self._clients.get("s3", region).upload_part_copy(**upload, **part)
            return {"PartNumber": number, "ETag": copied["CopyPartResult"]["ETag"]}

        try:
            parts = [one.value for one in fan_out(copy_part, range(0, size, PART), width=PARTS_AT_ONCE)]
            self._clients.get("s3", region).complete_multipart_upload(
                **upload, MultipartUpload={"Parts": parts}
            )
        except BaseException:
            self._clients.get("s3", region).abort_multipart_upload(**upload)
            raise

    def newest_step(self, uri: str) -> int:
        """Return the committed steps of the newest whole checkpoint below a prefix; 0 if there is none.

        Raises:
            CloudError: There is no such bucket, or no permission.
        """
        return _newest_step(self._sizes(uri))

    def newest_state(self, uri: str) -> dict[str, Any]:
        """Return the newest manifest that `templates/checkpoints.py` stored below a prefix; empty if none.

        Raises:
            CloudError: There is no such bucket, or no permission.
        """
        numbers = [int(match[1]) for name in self._sizes(uri) if (match := STATE.fullmatch(name))]
        if not numbers:
            return {}
        state: dict[str, Any] = json.loads(self.get(uri, f"state-{max(numbers)}.json"))
        return state

    def newest_size(self, uri: str) -> int:
        """Return the bytes of the newest whole checkpoint of a training below a prefix; 0 if there is none.

        Raises:
            CloudError: There is no such bucket, or no permission.
        """
        sizes = self._sizes(uri)
        step = _newest_step(sizes)
        matches = (MANIFEST.fullmatch(name) for name in sizes)
        return max((int(one["size"]) for one in matches if one and int(one["step"]) == step), default=0)

    def last_step(self, uri: str, program: str) -> int:
        """Return the newest step if the training of a program ended with it; else 0.

        Args:
            uri: Where its checkpoints are.
            program: The digest that the trainer's uploader was given.

        Raises:
            CloudError: There is no such bucket, or no permission.
        """
        sizes = self._sizes(uri)
        step = _newest_step(sizes)
        return step if f"finished-{step:012}-{program}.json" in sizes else 0

    def _sizes(self, uri: str) -> dict[str, int]:
        """Return the size of each object below a prefix, by its name."""
        bucket, prefix = split_uri(uri)
        with translate_errors(f"looking into {uri} (s3:ListBucket)"):
            pages = self._clients.get("s3", self._known_region(uri)).get_paginator("list_objects_v2")
            return {
                item["Key"].rpartition("/")[2]: item["Size"]
                for page in pages.paginate(Bucket=bucket, Prefix=_folder(prefix))
                for item in page.get("Contents", ())
            }

    def put(self, uri: str, name: str, content: bytes) -> None:
        """Store an object below a prefix.

        Raises:
            CloudError: There is no such bucket, or no permission.
        """
        with translate_errors(f"storing {name} in {uri} (s3:PutObject)"):
            self._clients.get("s3", self._known_region(uri)).put_object(**_object(uri, name), Body=content)

    def get(self, uri: str, name: str) -> bytes:
        """Return an object below a prefix; raises as `put` does, and where there is none."""
        with translate_errors(f"reading {name} from {uri} (s3:GetObject)"):
            return bytes(
                self._clients.get("s3", self._known_region(uri))
                .get_object(**_object(uri, name))["Body"]
                .read()
            )

    def names(self, uri: str) -> set[str]:
        """Return the names, without folders, of the objects below a prefix; raises as `put` does."""
        return set(self._sizes(uri))

    def abort_uploads(self, uri: str) -> int:
        """Abort the unfinished uploads of checkpoints below a prefix, and return how many there were.

        S3 bills their parts until then, and lists them among no objects.
        Source: S3 user guide, "Uploading and copying objects using multipart upload".

        Raises:
            CloudError: There is no such bucket, or no permission.
        """
        bucket, prefix = split_uri(uri)
        with translate_errors(f"looking for unfinished uploads to {uri} (s3:ListBucketMultipartUploads)"):
            pages = self._clients.get("s3", self._region(bucket)).get_paginator("list_multipart_uploads")
            uploads = [
                {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                for page in pages.paginate(Bucket=bucket, Prefix=_folder(prefix))
                for upload in page.get("Uploads", ())
                if UPLOADED.fullmatch(upload["Key"].rpartition("/")[2])
            ]
        for upload in uploads:
            with translate_errors(f"aborting an upload to {uri} (s3:AbortMultipartUpload)", ignore=GONE):
                self._clients.get("s3", self._region(bucket)).abort_multipart_upload(Bucket=bucket, **upload)
        return len(uploads)

    def region_of(self, uri: str) -> str:
        """Return the region of a bucket; raises as `newest_step` does."""
        with translate_errors(f"looking up the region of {uri} (s3:ListBucket)"):
            return self._known_region(uri)

    def _known_region(self, uri: str) -> str:
        """Return the region of a bucket, asked for once."""
        bucket = split_uri(uri)[0]
        if bucket not in self._regions:
            self._regions[bucket] = self._region(bucket)
        return self._regions[bucket]

    def _region(self, bucket: str) -> str:
        """Return the region of a bucket, which S3 also states to those who may list a part of it only.

        Source: S3 API reference, HeadBucket: x-amz-bucket-region.
        """
        try:
            answer = self._clients.get("s3").head_bucket(Bucket=bucket)
        except ClientError as error:
            metadata = error.response["ResponseMetadata"]
            if metadata["HTTPStatusCode"] == HTTPStatus.NOT_FOUND:
                is_local = bool(self._clients.endpoint_url)
                hint = f"{LOCAL_SHELL if is_local else ''}aws s3 mb s3://{bucket}"
                raise CloudError(f"there is no bucket {bucket}", hint) from error
            region = metadata["HTTPHeaders"].get("x-amz-bucket-region")
            if not region:
                raise
            return str(region)
        return str(answer.get("BucketRegion") or self._clients.region)


def _new(there: Mapping[str, Stored], here: Mapping[str, Stored]) -> dict[str, int]:
    """Return the bytes of each object of one prefix that another one lacks, or has an older one of."""
    return {
        name: size
        for name, (size, changed_at) in there.items()
        if name not in here or here[name][0] != size or here[name][1] < changed_at
    }


def checkpoint_name(manifest: str) -> str:
    """Return the name of the checkpoint that a manifest is of."""
    _, step, digest, _ = manifest.split("-")
    return f"step-{step}-{digest}.pt"


def _is_manifest(name: str) -> bool:
    return name.endswith(".json")


def _object(uri: str, name: str) -> dict[str, str]:
    bucket, prefix = split_uri(uri)
    return {"Bucket": bucket, "Key": f"{_folder(prefix)}{name}"}


def _newest_step(sizes: Mapping[str, int]) -> int:
    steps = (
        int(match["step"])
        for name in sizes
        if (match := MANIFEST.fullmatch(name)) and sizes.get(checkpoint_name(name)) == int(match["size"])
    )
    return max(steps, default=0)


def _folder(prefix: str) -> str:
    return f"{prefix}/" if prefix else ""


Ledger = dict[str, Any]


class S3Ledger:
    """A document below a prefix.

    Args:
        clients: Of any region.
        uri: s3://BUCKET/PREFIX.
        name: Of the object.
    """

    def __init__(self, clients: Clients, uri: str, name: str) -> None:
        self._clients = clients
        self._uri = uri
        bucket, prefix = split_uri(uri)
        self._place = {"Bucket": bucket, "Key": f"{prefix}/{name}" if prefix else name}

    def read(self) -> Ledger:
        """Return the document; an empty one if there is none.

        Raises:
            CloudError: There is no such bucket, or no permission.
        """
        return self._read()[0]

    def update(self, change: Callable[[Ledger], Ledger]) -> Ledger:
        """Change the document, again if another has changed it meanwhile; return what was written.

        Source: S3 user guide, "Conditional writes": If-Match and If-None-Match on PutObject.

        Raises:
            CloudError: There is no such bucket, no permission, or others changed it all the time.
        """
        for _ in range(TRIES):
            content, tag = self._read()
            changed = change(content)
            condition = {"IfMatch": tag} if tag else {"IfNoneMatch": "*"}
            body = json.dumps(changed, sort_keys=True).encode()
            with translate_errors(f"writing the budget to {self._uri} (s3:PutObject)"), suppress(_Conflict):
                self._put(body, condition)
                return changed
        raise CloudError(f"the budget in {self._uri} is changed by others all the time", "try again")

    def _put(self, body: bytes, condition: dict[str, str]) -> None:
        try:
            self._client().put_object(**self._place, Body=body, ContentType="application/json", **condition)
        except ClientError as error:
            if error.response["Error"]["Code"] in CONFLICTS:
                raise _Conflict from error
            raise

    def _read(self) -> tuple[Ledger, str]:
        with translate_errors(f"reading the budget in {self._uri} (s3:GetObject)"):
            try:
                answer = self._client().get_object(**self._place)
            except ClientError as error:
                if error.response["Error"]["Code"] in MISSING:
                    return {}, ""
                raise
            content = json.loads(answer["Body"].read())
        if not isinstance(content, dict):
            raise CloudError(f"{self._uri}: {self._place['Key']} is no budget of dlcloud's")
        return content, str(answer["ETag"])

    def _client(self) -> Any:  # noqa: ANN401  boto3 has no types
        return self._clients.get("s3", S3Buckets(self._clients).region_of(self._uri))


class _Conflict(Exception):  # noqa: N818  it never leaves this module
    """Another has changed the document since it was read."""
