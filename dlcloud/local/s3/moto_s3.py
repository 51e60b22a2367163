"""moto's S3 with objects on disk and true checksums. Importing this takes a moment."""

import base64
import threading
from collections.abc import Callable
from typing import Any, cast

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import create_backend_app
from moto.s3 import models, responses
from moto.s3 import urls as s3_urls
from moto.s3.models import FakeKey, s3_backends
from moto.s3.responses import S3Response

from dlcloud.local.s3.calls import CHECKSUMS

_PARTITION = "aws"
_reading = threading.local()


class _Content:
    """The content of an object that is read in ranges; only the range that is asked for is in memory."""

    def __init__(self, key: Any) -> None:  # noqa: ANN401 - moto's object
        self._key = key

    def __len__(self) -> int:
        return int(self._key.contentsize)

    def __getitem__(self, part: slice) -> bytes:
        begin, end, _ = part.indices(len(self))
        return cast("bytes", self._key.read_range(begin, end - begin))


class _DiskKey(FakeKey):
    """An object, whose content is in a file unless it is small."""

    def read_range(self, begin: int, length: int) -> bytes:
        with self.lock:
            self._value_buffer.seek(begin)
            return self._value_buffer.read(length)

    @property
    def value(self) -> Any:  # noqa: ANN401 - bytes, or what is cut like them
        return _Content(self) if getattr(_reading, "in_ranges", False) else self.read_range(0, -1)

    @value.setter
    def value(self, content: bytes) -> None:
        FakeKey.value.fset(self, content)  # type: ignore[attr-defined]


class _RangeResponse(S3Response):
    """The API of S3, which reads of an object no more than the range that was asked for."""

    def key_response(self, request: Any, full_url: str, headers: Any) -> Any:  # noqa: ANN401 - moto's types
        _reading.in_ranges = request.method == "GET" and _has_one_range(request.headers.get("range", ""))
        try:
            return super().key_response(request, full_url, headers)
        finally:
            _reading.in_ranges = False


def create_s3_app() -> Callable[..., Any]:
    """Return the WSGI application that answers S3 in path style."""
    models.FakeKey = _DiskKey  # type: ignore[misc]
    for module in (models, responses):
        module.compute_checksum = _compute_checksum  # type: ignore[attr-defined]
    for pattern, handler in list(s3_urls.url_paths.items()):
        s3_urls.url_paths[pattern] = getattr(_RangeResponse, handler.__name__)
    return cast("Callable[..., Any]", create_backend_app("s3"))


def bucket_region(name: str) -> str | None:
    """Return the region of a bucket; None if there is no such bucket."""
    bucket = s3_backends[DEFAULT_ACCOUNT_ID][_PARTITION].buckets.get(name)
    return None if bucket is None else str(bucket.region_name)


def _has_one_range(header: str) -> bool:
    """True if moto cuts the content by a Range header; it sends all of it for any other."""
    unit, _, span = header.partition("=")
    begin, dash, end = span.partition("-")
    return unit == "bytes" and dash == "-" and begin.isdigit() and (not end or end.isdigit())


def _compute_checksum(body: bytes, algorithm: str, encode_base64: bool = True) -> bytes:  # noqa: FBT001, FBT002
    digest = CHECKSUMS[algorithm](bytes(body))
    return base64.b64encode(digest) if encode_base64 else digest
