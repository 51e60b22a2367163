"""What one run cost: the billed seconds of its instance, phase by phase, and its volume."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from dlcloud.core.cost import billed_seconds, instance_usd, volume_usd
from dlcloud.core.result import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class BillingPeriod:
    """An instance as it is billed, from launch to termination; `ended_at` is None while it is up."""

    instance_id: str
    launched_at: datetime
    ended_at: datetime | None
    disk_gib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The seconds that a run is charged with, in the order in which they passed.

    `boot_s` is from launch until the instance answered, or the idle time since the run before; `setup_s`
    built the environment; `rest_s` brought files home and ended the instance, the unused part of the first
    minute included. `setup_s` is None for a run of an older dlcloud: `boot_s` holds both then. `usd` is None
    at an unknown price. `final` tells that the instance has ended, so that nothing is added any more.
    """

    boot_s: int
    setup_s: int | None
    run_s: int
    rest_s: int
    instance_usd: Decimal | None
    volume_usd: Decimal
    final: bool

    @property
    def seconds(self) -> int:
        """Return the billed seconds of all phases."""
        return self.boot_s + (self.setup_s or 0) + self.run_s + self.rest_s

    @property
    def usd(self) -> Decimal | None:
        """Return what instance and volume cost together."""
        return None if self.instance_usd is None else self.instance_usd + self.volume_usd


def bill_of(run: Run, on_instance: Sequence[Run], lease: BillingPeriod, now: datetime) -> Bill:
    """Return what a run is charged with; the bills of all runs of an instance add up to the instance's.

    The first run carries the boot, the last one the end; each carries the time since the run before it.

    Args:
        run: Which.
        on_instance: Every run of its instance, itself included, the oldest first.
        lease: The instance.
        now: How far an instance that is up has been billed.
    """
    place = [each.run_id for each in on_instance].index(run.run_id)
    last = place == len(on_instance) - 1
    total = billed_seconds(lease.launched_at, lease.ended_at or now)

    def offset(time: datetime | None) -> int:
        """Return whole seconds since the launch, never beyond what is billed."""
        elapsed = ((time or now) - lease.launched_at).total_seconds()
        return min(total, max(0, round(elapsed)))

    begun = offset(on_instance[place - 1].ended_at) if place else 0
    started = max(begun, offset(run.started_at))
    ended = max(started, offset(run.ended_at))
    until = total if last else ended
    setup = None if run.setup_at is None else min(started, max(begun, offset(run.setup_at)))
    seconds = until - begun
    return Bill(
        boot_s=(started if setup is None else setup) - begun,
        setup_s=None if setup is None else started - setup,
        run_s=ended - started,
        rest_s=until - ended,
        instance_usd=None if run.hourly_usd is None else instance_usd(run.hourly_usd, seconds),
        volume_usd=volume_usd(lease.disk_gib, seconds),
        final=lease.ended_at is not None,
    )
