"""Launch a training again that lost all of its instances: it goes on from its newest stored checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from dlcloud.elastic.failover import StateLostError
from dlcloud.launch.launcher import Launcher
from dlcloud.model.cluster import Member
from dlcloud.model.errors import BudgetError, CloudError, CredentialsError, InstanceError
from dlcloud.model.events import Info, Warned
from dlcloud.planning.plan import Plan
from dlcloud.recipe.recipe import Recipe
from dlcloud.scheduling.scaling import LONGEST_WAIT, LaunchRefusals, longest_wait

MOST_WITHOUT_PROGRESS = 5
"""So many losses in a row without a newer checkpoint end the training: it would go on for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaunched:
    """The next instances of a training.

    Attributes:
        plan: They were launched with it.
        restored: Committed steps of the checkpoint that they go on from; 0: from the start.
    """

    plan: Plan
    members: Sequence[Member]
    restored: int


@dataclass(slots=True, kw_only=True)
class Relauncher:
    """Launches one training again, as often as it loses all of its instances.

    Args:
        cidrs: The networks that may reach the instances.
        restored: Committed steps of the checkpoint that the first instances went on from.
    """

    launcher: Launcher
    recipe: Recipe
    cidrs: Sequence[str]
    restored: int
    _losses: int = field(init=False, default=0)  # since the newest checkpoint was stored

    @property
    def _hint(self) -> str:
        return f"the same dlcloud up RECIPE goes on from the newest checkpoint in {self.recipe.checkpoints}"

    def describe_end(self, lost: StateLostError) -> InstanceError:
        """Return the error of a training that is not launched again here."""
        return InstanceError(_what_happened(lost), self._hint)

    def launch(self, lost: StateLostError) -> Relaunched:
        """End what is left, and launch by the recipe; while EC2 refuses, ask again until the budget ends.

        Raises:
            InstanceError: The budget is used up, EC2 denies it for good, or no checkpoint was stored between
                the newest losses.
        """
        message, refusals = _what_happened(lost), 0
        self.launcher.emit(Warned(message=f"{message}: launching again from {self.recipe.checkpoints}"))
        while True:
            try:
                return self._launch()
            except (BudgetError, CredentialsError) as error:
                raise self._give_up(message, error.message) from error
            except (CloudError, InstanceError) as error:
                if isinstance(error, CloudError) and error.is_final:
                    raise self._give_up(message, error.message) from error
                refusals += 1
                self._wait(error, refusals)

    def _launch(self) -> Relaunched:
        launcher = self.launcher
        launcher.shrink(launcher.reconcile(consistent=True))
        # Only now: until its end an instance may have stored another.
        step = launcher.cloud.buckets.newest_step(str(self.recipe.checkpoints))
        self._refuse_no_progress(step)
        self._refuse_end_of_budget()
        plan = launcher.plan(self.recipe, cidrs=self.cidrs, members=[])
        try:
            members = launcher.launch(plan).members
        except (CloudError, InstanceError):
            launcher.shrink(launcher.reconcile())  # while it waits, nothing is billed
            raise
        launcher.emit(Info(message=f"goes on from step {step}, which {self.recipe.checkpoints} has"))
        self._losses += 1
        return Relaunched(plan=plan, members=members, restored=step)

    def _refuse_no_progress(self, step: int) -> None:
        if step > self.restored:
            self.restored, self._losses = step, 0
        if self._losses >= MOST_WITHOUT_PROGRESS:
            times = f"{self._losses + 1} losses in a row without a newer checkpoint than that of step {step}"
            raise BudgetError(f"{times}; set checkpoint_seconds to less than instances last")

    def _refuse_end_of_budget(self) -> None:
        hours = self.recipe.budget.max_hours
        if self.launcher.clock.now() >= self.launcher.cluster.created_at + timedelta(hours=hours):
            raise BudgetError(f"budget.max_hours is over: {hours:g} h since the start")

    def _wait(self, error: CloudError | InstanceError, times: int) -> None:
        """Wait after a refusal, each time twice as long as before."""
        clock, deadline = self.launcher.clock, self.recipe.deadline
        now, longest, created_at = clock.now(), LONGEST_WAIT, self.launcher.cluster.created_at
        if deadline is not None:
            longest = longest_wait(deadline.at(created_at) - created_at)
        refusals = LaunchRefusals(times=times, at=now)
        wait_s = min(refusals.retry_at - now, longest).total_seconds()
        message = f"not launched: {error.message}; asking again in {wait_s:.0f} s"
        self.launcher.emit(Warned(message=message))
        clock.sleep(wait_s)

    def _give_up(self, message: str, cause: str) -> InstanceError:
        return InstanceError(f"{message}, and it is not launched again: {cause}", self._hint)


def _what_happened(lost: StateLostError) -> str:
    """Return the message of the loss without what it says of the steps: they are not lost here."""
    return lost.message.partition(": the ")[0]
