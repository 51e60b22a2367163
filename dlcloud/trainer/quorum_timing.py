"""How long a worker waits for others."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long to wait.

    Attributes:
        quorum_s: For an agreement on who takes part, before it is asked for anew.
        connect_s: For the connections among the workers of a new quorum.
        heal_s: For the state of a peer, and for a step in which somebody may be taking it.
        stall_s: Least time that a sum may take before it is broken off.
        stall_factor: Times its usual length that a step may take, where that is more.
        heartbeat_s: Between signs of life to the lighthouse.
    """

    quorum_s: float = 60.0
    connect_s: float = 10.0
    heal_s: float = 120.0
    stall_s: float = 5.0
    stall_factor: float = 5.0
    heartbeat_s: float = 0.05
