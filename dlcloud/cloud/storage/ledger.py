"""One JSON document in a bucket that several homes change, none of them over another's change."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from botocore.exceptions import ClientError

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.faults import translate_errors
from dlcloud.cloud.storage.buckets import S3Buckets
from dlcloud.model.errors import CloudError
from dlcloud.recipe.data_set import split_uri

TRIES = 12
"""Attempts at a change while others change it, too."""
CONFLICTS = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
MISSING = {"NoSuchKey", "404"}

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
