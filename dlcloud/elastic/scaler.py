"""What decides the size of a training: the controller asks it each turn, and tells it what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dlcloud.elastic.reports import WorkerReport
from dlcloud.model.cluster import Member
from dlcloud.model.errors import CloudError
from dlcloud.planning.launch_request import PoolRefusal
from dlcloud.scheduling.scaling import ScalingDecision, Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnded:
    """A request for instances has ended.

    Attributes:
        decision: What was requested.
        new: The instances that it gave.
        refusals: Of pools that gave none, or too few.
        error: Why it could not be made; None if it was.
    """

    decision: ScalingDecision
    new: Sequence[Member] = ()
    refusals: Sequence[PoolRefusal] = ()
    error: BaseException | None = None

    @property
    def final_error(self) -> CloudError | None:
        """The refusal as denied or invalid, which no waiting can mend; None without one."""
        errors = [self.error, *(refusal.error for refusal in self.refusals)]
        return next((error for error in errors if isinstance(error, CloudError) and error.is_final), None)


class Scaler(Protocol):
    """Chooses the size of one training."""

    @property
    def target(self) -> int:
        """The workers that are requested now."""

    def observe(self, report: WorkerReport) -> None:
        """Take what a worker reports into account."""

    def decide(self, workers: Sequence[Worker], *, is_launching: bool) -> ScalingDecision:
        """Return which instances are requested and which workers leave now.

        Args:
            workers: All that the run has had.
            is_launching: True while a request for instances is under way.
        """

    def record(self, decision: ScalingDecision) -> None:
        """Remember a decision that is carried out; it may come again while workers leave."""

    def handle_request(self, ended: RequestEnded) -> None:
        """Take into account what a request gave."""
