"""A data set in S3, as the plan and the instances see it, and its address."""

import re
from dataclasses import dataclass

# Source: S3 user guide, "General purpose bucket naming rules"; keys have at most 1,024 bytes.
_S3 = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[^*?\[\]\x00-\x1f]{0,900}))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """What a prefix of a bucket holds; `size` in bytes."""

    uri: str
    region: str
    files: int
    size: int


def s3_endpoint(region: str) -> str:
    """Return the address of S3 in a region. Source: AWS General Reference, "Amazon S3 endpoints"."""
    return f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"


def split_uri(uri: str) -> tuple[str, str]:
    """Return bucket and prefix of `s3://BUCKET/PREFIX`, the prefix without a slash at its end.

    Raises:
        ValueError: It is no such address.
    """
    match = _S3.fullmatch(uri)
    if match is None:
        raise ValueError(f"{uri!r} is not s3://BUCKET/PREFIX")
    return match["bucket"], (match["prefix"] or "").strip("/")
