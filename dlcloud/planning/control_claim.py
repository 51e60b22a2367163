"""The claim of one instance to control a detached cluster."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlClaim:
    """An instance's claim of a term of control, from 1; term 0 is the coordinator that the launcher chose."""

    term: int
    instance_id: str
    at: datetime
