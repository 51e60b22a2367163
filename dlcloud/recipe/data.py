"""`data` and `checkpoints`: what a training reads, and where its state outlives its instances."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from dlcloud.recipe.values import Form, Part


def _checked(uri: str) -> str:
    split_uri(uri)
    return uri.rstrip("/")


S3Uri = Annotated[str, AfterValidator(_checked), Form(r"s3://.*", "s3://BUCKET/PREFIX")]


class DataItem(Part):
    """A folder that a workload reads: copied to each instance once, or mounted."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, populate_by_name=True)

    source: Annotated[str, StringConstraints(min_length=1)] = Field(
        alias="from",
        description="s3://BUCKET/PREFIX, or a folder relative to the recipe, which is uploaded once.",
    )
    to: Annotated[
        str,
        Form(
            r"[A-Za-z0-9_.][A-Za-z0-9_./-]*", "a path below the job's folder, of letters, digits, _, . and -"
        ),
    ] = Field(description="Where the command finds it, below its working folder.")
    mode: Literal["copy", "mount-point"] = Field(
        default="copy",
        description="copy: to the instance's disk, or its NVMe instance store; mount-point: Mountpoint "
        "for Amazon S3 reads it as needed.",
    )

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.is_remote:
            split_uri(self.source)
        elif "://" in self.source:
            raise ValueError(f"{self.source}: only s3:// and folders can be read")
        elif self.mode == "mount-point":
            raise ValueError("mode: mount-point belongs to an s3:// source")
        path = PurePosixPath(self.to)
        if ".." in path.parts or path in {PurePosixPath(), PurePosixPath(".")}:
            raise ValueError(f"to: {self.to} is not a folder below the working folder")
        return self

    @property
    def is_remote(self) -> bool:
        """True if it is in a bucket."""
        return self.source.startswith("s3://")


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
        bucket = uri.removeprefix("s3://").partition("/")[0]
        is_short = uri.startswith("s3://") and re.fullmatch(r"[a-z0-9.-]{1,2}", bucket)
        reason = f": a bucket's name has at least 3 characters, {bucket!r} has fewer" if is_short else ""
        if uri.startswith("s3://") and re.search(r"[^a-z0-9.-]", bucket):
            reason = f": a bucket's name has lower-case letters, digits, dots and hyphens, not as {bucket!r}"
        raise ValueError(f"{uri!r} is not s3://BUCKET/PREFIX{reason}")
    return match["bucket"], (match["prefix"] or "").strip("/")
