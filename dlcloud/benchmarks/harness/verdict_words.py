"""The words for what a comparison shows; the launcher takes them from here."""

from enum import Enum


class Verdict(str, Enum):
    """The verdict of a comparison."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference seen"
    UNDECIDED = "undecided"  # too few pairs to decide

    __str__ = str.__str__
