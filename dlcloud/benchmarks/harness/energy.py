"""Read what processors count of their energy, where the machine shows it: bare metal, as root.

Source: Linux, Documentation/power/powercap/powercap.rst. A package counts microjoules, in turns.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class Energy:
    """What the packages had counted at one moment: microjoules, and at how many a counter starts over."""

    counters: Mapping[str, tuple[int, int]]


def read_energy(root: Path = POWERCAP) -> Energy:
    """Read the counters of all packages; none where there are none, or only root may read them."""
    counters = {}
    for folder in sorted(root.glob("*-rapl:[0-9]*")):
        if folder.name.count(":") == 1:  # two: a part of a package, such as its cores
            with suppress(OSError, ValueError):
                used = int((folder / "energy_uj").read_text())
                counters[folder.name] = (used, int((folder / "max_energy_range_uj").read_text()))
    return Energy(counters)


def joules_between(before: Energy, after: Energy) -> float | None:
    """Return the joules of all packages from one moment to a later one, at most one turn of a counter."""
    if not before.counters or before.counters.keys() != after.counters.keys():
        return None
    used = (
        (end - start) % turn
        for (start, turn), (end, _) in zip(before.counters.values(), after.counters.values(), strict=True)
    )
    return sum(used) / 1e6


def facts_of(joules: Sequence[float | None], items: float) -> dict[str, float]:
    """Return the energy of an item over all slices; nothing where a slice has none."""
    counted = [value for value in joules if value is not None]
    if not counted or len(counted) < len(joules) or not items:
        return {}
    return {"package_joules_per_item": round(sum(counted) / items, 6)}
