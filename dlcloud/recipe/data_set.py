"""A data set in S3, as the plan and the instances see it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """What a prefix of a bucket holds; `size` in bytes."""

    uri: str
    region: str
    files: int
    size: int
