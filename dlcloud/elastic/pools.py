"""What pools of capacity answered recently, and how often they took instances back."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from dlcloud.scheduling.policies.situation import Availability
from dlcloud.scheduling.scaling import FIRST_WAIT, LONGEST_WAIT
from dlcloud.scheduling.spells import SpellFit


@dataclass(slots=True)
class PoolHistory:
    """The recent past of one pool, from its first answer on.

    Attributes:
        longest_wait: After refusals in a row it is asked again after so long at most.
        requests: Answers to requests.
        refused: How many of them gave too few instances.
        interrupted: Instances that were taken back.
        drops: How often some were taken back while others stayed.
    """

    longest_wait: timedelta = LONGEST_WAIT
    requests: int = 0
    refused: int = 0
    interrupted: int = 0
    drops: int = 0
    _since: datetime | None = None
    _changed_at: datetime | None = None
    _has: bool = False
    _available: timedelta = field(default_factory=timedelta)
    _spells: int = 0
    _on: SpellFit = field(default_factory=SpellFit)
    _off: SpellFit = field(default_factory=SpellFit)
    _refusals: int = 0
    _retry_at: datetime | None = None
    _denied: bool = False

    def grant(self, now: datetime) -> None:
        """Record that it gave all that was requested."""
        self.requests += 1
        self._refusals, self._retry_at = 0, None
        self._set(has=True, now=now)

    def hold(self, now: datetime) -> None:
        """Record that instances of it run, which it was not asked for here."""
        self._set(has=True, now=now)

    def refuse(self, now: datetime, *, final: bool = False, holds: bool = False) -> None:
        """Record that it gave too few.

        Args:
            now: The time.
            final: It is not asked again.
            holds: Instances of it run: it has no more, but what it gave lasts.
        """
        self.requests += 1
        self.refused += 1
        self._denied = self._denied or final
        self._wait(now, holds=holds)

    def interrupt(self, now: datetime, *, holds: bool = False) -> None:
        """Record that it took instances back: all, or a part, if others of it run (`holds`)."""
        self.interrupted += 1
        self.drops += holds
        self._wait(now, holds=holds)

    @property
    def has(self) -> bool:
        """True if it gave what was requested last, or what it gave lasts."""
        return self._has

    def is_askable(self, now: datetime) -> bool:
        return not self._denied and (self._retry_at is None or self._retry_at <= now)

    def availability(self, now: datetime) -> Availability:
        if self._since is None or self._changed_at is None:
            return Availability()
        unchanged = now - self._changed_at
        available = self._available + (unchanged if self._has else timedelta())
        return Availability(
            observed_s=(now - self._since).total_seconds(),
            available_s=available.total_seconds(),
            spells=self._spells,
            unchanged_s=unchanged.total_seconds(),
            median_on_s=self._on.median_s(unchanged.total_seconds() if self._has else 0.0),
            median_off_s=self._off.median_s(0.0 if self._has else unchanged.total_seconds()),
            drops=self.drops,
        )

    def _wait(self, now: datetime, *, holds: bool) -> None:
        doubled = FIRST_WAIT * (1 << min(self._refusals, 10))
        self._refusals += 1
        self._retry_at = now + min(doubled, self.longest_wait)
        self._set(has=holds, now=now)

    def _set(self, *, has: bool, now: datetime) -> None:
        self._since = self._since or now
        if self._changed_at is not None and has == self._has:
            return
        if self._changed_at is not None:
            spell = now - self._changed_at
            (self._on if self._has else self._off).end(spell.total_seconds())
            self._available += spell if self._has else timedelta()
        self._spells += has
        self._has, self._changed_at = has, now
