"""What can go wrong between workers, apart from the libraries that it goes wrong in."""


class NoQuorumError(Exception):
    """There is no agreement on who takes part: the coordinator is away, or too few are there."""


class StrangerError(Exception):
    """A peer, a ledger or a checkpoint is of another run, or of this one with other settings."""
