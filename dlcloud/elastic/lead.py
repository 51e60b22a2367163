"""Who coordinates the workers of a run, and what those must know who turn to it."""

from dataclasses import dataclass

from dlcloud.core.cluster import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """An instance that runs lighthouse and ledger.

    Attributes:
        member: Which.
        generation: How many took over before it; 0 is the one that the run began with.
        step: Steps known to be committed when it took over.
        minimum: Workers that a step needs.
        least: Steps that the newest state has behind it that a survivor holds; nobody trains an older one on.
    """

    member: Member
    generation: int = 0
    step: int = 0
    least: int = 0
    minimum: int = 1

    @property
    def instance_id(self) -> str:
        """Return the instance's id."""
        return self.member.instance.instance_id

    @property
    def order(self) -> tuple[int, int, int]:
        """Return what tells what the workers are told from what they were told before."""
        return self.generation, self.least, self.minimum

    @property
    def host(self) -> str:
        """Return its address, as the others reach it."""
        return self.member.instance.private_host or self.member.instance.host
