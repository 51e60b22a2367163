"""Where the coordinator listens, unless told otherwise."""

LIGHTHOUSE = 29510
LEDGER = 29511
