"""Which failures of workers are those of their program or its set-up, and end the training."""

from collections.abc import Callable
from dataclasses import dataclass, field

from dlcloud.elastic.workers import WorkerExited
from dlcloud.model.errors import CredentialsError, RemoteCommandError
from dlcloud.model.events import Emit, Warned
from dlcloud.results.result import Run

MOST_FAILURES = 3
"""So many workers in a row that fail before a step are the program's fault, not their instances'."""

SETUP_ERRORS = (CredentialsError, RemoteCommandError)
"""Those of a set-up that say nothing about its instance."""


@dataclass(slots=True, kw_only=True)
class FailureCount:
    """Counts workers that failed since the last step.

    Args:
        error_of: Returns the error of a run that failed.
    """

    error_of: Callable[[Run], RemoteCommandError]
    emit: Emit
    _failures: int = field(init=False, default=0)

    def reset(self) -> None:
        """Begin anew: a step is committed."""
        self._failures = 0

    def judge(self, exited: WorkerExited, *, is_first: bool) -> None:
        """Warn of a worker that failed; its instance is replaced.

        Args:
            exited: How it ended.
            is_first: True for that of the coordinator before the first step: where its program or its set-up
                fails, those of every instance do, and replacing it would go on for ever.

        Raises:
            CredentialsError, RemoteCommandError: It is not the fault of the instance.
        """
        if exited.error is not None:
            if is_first and isinstance(exited.error, SETUP_ERRORS):
                raise exited.error
            self.emit(Warned(message=str(exited.error), instance_id=exited.instance_id))
        if exited.run is None or exited.is_drained:
            return
        self._failures += 1
        if self._failures >= (1 if is_first else MOST_FAILURES):
            raise self.error_of(exited.run)
        self.emit(Warned(message="its worker failed, and is replaced", instance_id=exited.instance_id))
