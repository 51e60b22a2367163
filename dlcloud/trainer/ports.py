"""Where the coordinator listens, unless told otherwise."""

LIGHTHOUSE = 29510
LEDGER = 29511


def ledger_beside(lighthouse: str) -> str:
    """Return `HOST:PORT` of the ledger, next to the lighthouse at `HOST:PORT`."""
    host, _, port = lighthouse.rpartition(":")
    return f"{host}:{int(port) + 1}"
