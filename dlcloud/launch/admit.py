"""Reach a kept cluster again from a machine whose own address has changed."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlcloud.model.errors import CloudError, UnreachableError
from dlcloud.model.events import Emit, Info, Warned
from dlcloud.model.remote import Connection, Dial, Endpoint

if TYPE_CHECKING:  # as for most commands: nothing of a cloud is needed
    from dlcloud.cloud.ec2 import Ec2Caller, Ec2Cloud
    from dlcloud.cloud.network.security_groups import Ec2Network


@dataclass(slots=True, kw_only=True)
class AdmittingDialer:
    """Dials the instances of one cluster; after a time-out, admits this machine's address and dials again.

    A security group drops packets from other addresses: they time out, while an instance without a server
    refuses. The address is looked up once, and `cloud` is not called before.
    """

    dialer: Dial
    cloud: "Callable[[], Ec2Cloud]"
    cluster_id: str
    emit: Emit
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _has_moved: bool | None = field(init=False, default=None)

    def dial(self, endpoint: Endpoint, *, wait_s: float = 0.0) -> Connection:
        """Return an open connection; see `model.remote.Dial`."""
        try:
            return self.dialer.dial(endpoint, wait_s=wait_s)
        except UnreachableError as error:
            if not isinstance(error.__cause__, TimeoutError) or not self._admit():
                raise
        return self.dialer.dial(endpoint, wait_s=wait_s)

    def close(self) -> None:
        self.dialer.close()

    def _admit(self) -> bool:
        """Admit this machine's address; True if it was not admitted before this command."""
        with self._lock:
            if self._has_moved is None:
                cloud = self.cloud()
                self._has_moved = move_access(
                    self.cluster_id, caller=cloud.caller, network=cloud.network, emit=self.emit
                )
            return self._has_moved


def move_access(cluster_id: str, *, caller: "Ec2Caller", network: "Ec2Network", emit: Emit) -> bool:
    """Let this machine's present address reach a cluster over SSH, in place of earlier ones.

    Returns:
        True if it could not before; it is said. What stands in the way of it is said, too.
    """
    try:
        cidr = caller.cidr()
        replaced = network.move_ssh(cluster_id, cidr)
    except CloudError as error:
        emit(Warned(message=f"SSH is not allowed from this machine's present address: {error}"))
        return False
    if replaced is None:
        return False
    instead = f", no longer from {', '.join(replaced)}" if replaced else ""
    emit(Info(message=f"this machine's address has changed: SSH is allowed from {cidr}{instead}"))
    return True
