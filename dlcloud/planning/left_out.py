"""What of a benchmark is not run on a machine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A setting that is not run, and why; `setting` is empty if it is the whole benchmark."""

    benchmark: str
    setting: str
    reason: str
