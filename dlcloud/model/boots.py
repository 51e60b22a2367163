"""How long instances take to boot, as measured by others, and what a slow boot costs."""

import re
from decimal import Decimal

SLOW_BOOT_S = 44.0
"""What plans, deadlines and simulations assume of a boot: the 90th percentile, from call to first line
of user data, of 70 starts of 73 on EC2, April 2025 to August 2026; the median is 31 s. Source: Spare Cores,
sc-inspector-data (CC BY-SA 4.0), state of 2026-08-22."""
SLOWEST_BOOT_S = 865.0
"""The longest of them; the next one took 570 s, all others at most 50 s."""
HOUR_S = 3600
SHORTEST_BILLED_S = 60.0
_ACCELERATED = re.compile(r"(p[4-6][a-z-]*\d*|trn\d[a-z]*|dl\d[a-z]*|inf2)\.")


def boot_timeout_s(instance_type: str) -> float:
    """Return the seconds in which an instance must have an address and answer over SSH.

    Source: published measurements of metal types, 531 to 792 s, and canonical/pycloudlib, pull request 192,
    which saw more; the time of p4, p5, p6, dl1, inf2 and trn is an estimate.
    """
    if ".metal" in instance_type:
        return 1200.0
    return 600.0 if _ACCELERATED.match(instance_type) else 300.0


def describe_slow_boot(hourly_usd: Decimal | None, waited_s: float) -> str:
    """Return the price of either: of waiting for an instance, or of another one in its place.

    An instance that is not there at the time-out of its type is given up, as another one costs less than to
    wait on: of the measured boots that took longer than 50 s, both took 10 minutes or more.

    Args:
        hourly_usd: Its price; None if it is not known.
        waited_s: For how long it has been waited for, which is paid.
    """
    longer_s = max(0.0, SLOWEST_BOOT_S - waited_s)
    if hourly_usd is None:
        return f"the slowest measured boot takes {longer_s:.0f} s more, another instance {SLOW_BOOT_S:.0f} s"
    seconds = (waited_s, longer_s, max(SHORTEST_BILLED_S, SLOW_BOOT_S))
    paid, more, other = (hourly_usd * Decimal(s) / HOUR_S for s in seconds)
    return (
        f"{paid:.3f} USD so far; to wait for a boot as slow as the slowest measured one costs {more:.3f} USD "
        f"more, another instance {other:.3f} USD"
    )
