"""The values of one trial of an experiment, in words."""

from collections.abc import Mapping


def describe_values(values: Mapping[str, str]) -> str:
    """Return the values of a trial in one line, as `lr=0.1 depth=3`."""
    return " ".join(f"{name}={value}" for name, value in values.items()) or "(no values)"
