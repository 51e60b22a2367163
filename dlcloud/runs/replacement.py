"""When the instance of a run is reclaimed or lost, another takes its place, and the run starts again.

`Runner` and `NodesRunner` call `Replacements.replace` for each instance that is gone, and `resize` for what
`dlcloud resize` asks for; the use case says how one is launched. A program that fails by itself is not run
again unless `workload.retries` says so.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from dlcloud.model.clock import Clock
from dlcloud.model.cluster import Member
from dlcloud.model.errors import BudgetError, CapacityError, DlcloudError, InstanceError, QuotaError
from dlcloud.model.events import Emit, Info, Warned
from dlcloud.model.money import money, total_usd
from dlcloud.store.clusters import INTERRUPTION, Clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """How often a cluster's runs were interrupted, and what work was lost; an unknown price is None.

    `restarts` are those that have begun, as `Restart.to_values` gives them.
    """

    count: int
    lost_s: float
    usd: Decimal | None
    restarts: Sequence[Mapping[str, Any]] = ()

    def describe(self) -> str:
        times = "once" if self.count == 1 else f"{self.count} times"
        cost = "" if self.usd is None else f" ({money(self.usd)} USD)"
        text = f"interrupted {times}: {self.lost_s:.0f} s of work lost{cost}"
        if self.restarts:
            longest = max(self.restarts, key=lambda restart: restart["started_s"])
            most = "" if len(self.restarts) == 1 else " at most"
            text += f"; started again after {longest['started_s']:.0f} s{most} ({describe_parts(longest)})"
        return text

    def to_values(self) -> dict[str, Any]:
        """Return the same for programs."""
        usd = None if self.usd is None else float(self.usd)
        lost = {"interruptions": self.count, "lost_s": round(self.lost_s, 1), "lost_usd": usd}
        return {**lost, "restarts": [dict(restart) for restart in self.restarts]}


@dataclass(slots=True, kw_only=True)
class Restart:
    """What the time of a restart is spent on; `noticed_at` is None without a notice.

    Attributes:
        noticed_at, stopped_at, replaced_at, started_at, output_at: Monotonic seconds; those that are still
            to come are None.
        seconds: Of the parts that no restart can do without: see `PARTS`.
    """

    noticed_at: float | None
    stopped_at: float
    replaced_at: float
    started_at: float | None = None
    output_at: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def event(self) -> str:
        return "loss" if self.noticed_at is None else "notice"

    @property
    def began_at(self) -> float:
        return self.stopped_at if self.noticed_at is None else self.noticed_at

    def describe_start(self, started_at: float) -> str:
        self.started_at = started_at
        parts = [
            f"{self.replaced_at - self.stopped_at:.1f} s until its replacement was there",
            f"{started_at - self.replaced_at:.1f} s until its start",
        ]
        if self.noticed_at is not None:
            parts.insert(0, f"{self.stopped_at - self.began_at:.1f} s until it had stopped")
        values = self.to_values()
        total = f"the program starts again {values['started_s']:.1f} s after the {self.event}"
        return f"{total}: {', '.join(parts)} ({describe_parts(values)})"

    def describe_output(self, kind: str, output_at: float) -> str:
        assert self.started_at is not None  # noqa: S101 - it has printed something
        self.output_at = self.output_at or output_at
        after = f"{output_at - self.began_at:.1f} s after the {self.event}"
        return f"its first {kind} came {after}: {output_at - self.started_at:.1f} s after its start"

    def to_values(self) -> dict[str, Any]:
        """Return the seconds from the notice or the loss, and those of the parts, for programs."""
        values: dict[str, Any] = {"after": self.event}
        for name, at in (("started_s", self.started_at), ("first_output_s", self.output_at)):
            values[name] = None if at is None else round(at - self.began_at, 3)
        return {**values, **{f"{part}_s": round(self.seconds.get(part, 0.0), 3) for part in PARTS}}


PARTS = ("boot", "environment", "checkpoints")
"""From the request for the replacement until it answers; packages, data and files; restoring checkpoints."""


def describe_parts(restart: Mapping[str, Any]) -> str:
    """Return the parts of a restart, as `Restart.to_values` gives it."""
    return ", ".join(f"{part} {restart[f'{part}_s']:.1f} s" for part in PARTS)


class Interruption:
    """One loss of an instance, and how much work was lost with it, of all nodes; stored with its restart."""

    def __init__(
        self,
        clusters: Clusters,
        cluster_id: str,
        instance_id: str,
        *,
        lost_s: float,
        hourly_usd: Decimal | None,
        now: datetime,
    ) -> None:
        usd = None if hourly_usd is None else hourly_usd * Decimal(lost_s) / SECONDS_PER_HOUR
        self.summary = Interruptions(count=1, lost_s=lost_s, usd=usd)
        self._clusters = clusters
        self._detail = {"instance": instance_id, "lost_s": lost_s, "usd": None if usd is None else str(usd)}
        self._intent_id = clusters.begin_intent(cluster_id, INTERRUPTION, json.dumps(self._detail), now)
        clusters.end_intent(self._intent_id, "replaced", now)

    def note_restart(self, restart: Restart) -> None:
        """Store as much of its restart as there is."""
        detail = {**self._detail, "restart": restart.to_values()}
        self._clusters.describe_intent(self._intent_id, json.dumps(detail))


def interruptions_of(clusters: Clusters, *cluster_ids: str) -> Interruptions | None:
    """Return the interruptions of the runs of one or several clusters; None without any."""
    intents = [intent for cluster_id in cluster_ids for intent in clusters.intents(cluster_id, INTERRUPTION)]
    noted = [json.loads(intent.detail) for intent in intents]
    if not noted:
        return None
    usd = [None if one["usd"] is None else Decimal(one["usd"]) for one in noted]
    return Interruptions(
        count=len(noted),
        lost_s=sum(one["lost_s"] for one in noted),
        usd=total_usd(usd),
        restarts=[one["restart"] for one in noted if "restart" in one],
    )


SECONDS_PER_HOUR = 3600
FIRST_WAIT_S = 15.0
LONGEST_WAIT_S = 300.0
"""Between two tries to launch a replacement; capacity comes back after minutes or hours."""

Launch = Callable[[int, Collection[str], Collection[str], Member | None], Sequence[Member]]
"""Launches what the cluster lacks of a size next to the instances of some ids, without counting others that
end soon, in another pool than the lost instance's if there is one. Raises BudgetError if no time is left."""


class Replacements:
    """Replaces the instances of one cluster.

    Args:
        members: The instances that run the workload.
        launch: See `Launch`.
        clock: For the waits.
        emit: Takes the messages.
        leaves: Do not wait for capacity: the whole job moves to another Region.

    Attributes:
        boot_s: Seconds from the request for each replacement until it answered, by its id.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        launch: Launch,
        clock: Clock,
        emit: Emit,
        leaves: bool = False,
    ) -> None:
        self._connected = {member.instance.instance_id for member in members}
        self._size = len(members)
        self._launch, self._clock, self._emit, self._leaves = launch, clock, emit, leaves
        self.boot_s: dict[str, float] = {}
        self._spare: list[Member] = []  # launched for another of several that were lost at the same time
        self._leaving: set[str] = set()  # have a notice; their replacements are requested before they end
        self._lock = threading.Lock()

    def request(self, lost: Member) -> None:
        """Launch the instance that takes the place of one which ends soon, while its program stops."""
        with self._lock:
            self._leaving.add(lost.instance.instance_id)
        name = f"replacement of {lost.instance.instance_id}"
        threading.Thread(target=self._launch_early, args=(lost,), name=name, daemon=True).start()

    def _launch_early(self, lost: Member) -> None:
        with self._lock:
            if self._spare or lost.instance.instance_id not in self._connected:
                return
            self._connected.discard(lost.instance.instance_id)
            with contextlib.suppress(DlcloudError):  # `replace` has it again, and raises it
                self._spare.append(self._launch_one(lost, InstanceError("it has a notice")))

    def replace(self, lost: Member, error: DlcloudError) -> Member:
        """Return the instance that takes the place of one that is gone; wait until there is capacity.

        Raises:
            InstanceError: There is none within the budget.
            CapacityError: There is none now, and the job moves to another Region.
            CloudError: EC2 refused for another reason than capacity.
        """
        lost_id = lost.instance.instance_id
        self._emit(Warned(message=f"{error.message}; launching a replacement", instance_id=lost_id))
        with self._lock:
            self._connected.discard(lost_id)
            member = self._spare.pop() if self._spare else self._launch_one(lost, error)
            self._connected.add(member.instance.instance_id)
        self._emit(
            Info(message=f"replaces {lost_id}: the run starts again", instance_id=member.instance.instance_id)
        )
        return member

    def resize(self, size: int, *, end: Collection[Member] = ()) -> list[Member]:
        """Launch what is missing of a new size, and count instances that leave no more; return the new ones.

        Raises:
            DlcloudError: Nothing was launched; the size is that of before.
        """
        with self._lock:
            self._connected -= {member.instance.instance_id for member in end}
            new = list(self._launch(size, self._connected, self._leaving, None)) if size > self._size else []
            self._connected |= {member.instance.instance_id for member in new}
            self._size = self._size + len(new) if new else min(size, self._size)
        return new

    def _launch_one(self, lost: Member, error: DlcloudError) -> Member:
        wait_s = FIRST_WAIT_S
        # Once termination has begun, the store records no request: Ctrl-C leaves nothing behind.
        while True:
            began = self._clock.monotonic()
            try:
                new = list(self._launch(self._size, self._connected, self._leaving, lost))
                reason = "no pool has capacity"
            except (CapacityError, QuotaError) as refusal:
                new, reason = [], refusal.message
            except BudgetError as refusal:
                hint = "raise budget.max_hours to allow a replacement, and run the same command again"
                raise InstanceError(
                    f"{error.message}; it is not replaced: {refusal.message}", hint
                ) from error
            if new:
                seconds = self._clock.monotonic() - began
                self.boot_s |= {member.instance.instance_id: seconds for member in new}
                self._connected |= {member.instance.instance_id for member in new}
                self._spare += new[1:]
                return new[0]
            if self._leaves:
                raise CapacityError(f"{error.message}; it is not replaced there: {reason}") from error
            self._emit(Warned(message=f"no replacement yet: {reason}; next try in {wait_s:.0f} s"))
            self._clock.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
