"""Request instances from a thread, so that the training is followed meanwhile."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dlcloud.elastic.scaler import RequestEnded
from dlcloud.launch.launcher import LaunchedMembers
from dlcloud.model.events import Emit, Info
from dlcloud.scheduling.scaling import ScalingDecision


@dataclass(slots=True, kw_only=True)
class InstanceRequests:
    """Makes one request at a time.

    Args:
        launch_for: Launches the instances of a decision; the named ones are connected already.
        post: Receives how the request ended, from another thread.
    """

    launch_for: Callable[[ScalingDecision, Sequence[str]], LaunchedMembers]
    post: Callable[[RequestEnded], None]
    emit: Emit
    is_open: bool = field(default=False, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def request_instances(self, decision: ScalingDecision, connected: Sequence[str]) -> None:
        """Make the request of a decision; `connected` are the ids of the instances that are there."""
        self.is_open = True
        self.emit(Info(message=decision.reasons[-1]))
        arguments = (decision, connected)
        self._thread = threading.Thread(target=self._request, args=arguments, name="request", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Allow the next request: the end of this one has been handled."""
        self.is_open = False

    def join(self) -> None:
        """Wait until no request is under way: what it launches is then known to the store."""
        if self._thread is not None:
            self._thread.join()

    def _request(self, decision: ScalingDecision, connected: Sequence[str]) -> None:
        try:
            launched = self.launch_for(decision, connected)
        except BaseException as error:  # noqa: BLE001 - raised in the controller's own thread
            self.post(RequestEnded(decision=decision, error=error))
            return
        new = [member for member in launched.members if member.instance.instance_id not in connected]
        self.post(RequestEnded(decision=decision, new=new, refusals=launched.refusals))
