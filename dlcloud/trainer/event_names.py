"""The names of the events that workers, agents and lighthouses record; the launcher takes them from here."""

from enum import StrEnum


class EventName(StrEnum):
    """An event; the value is its name in the records."""

    JOINED = "joined"
    HEALED = "healed"
    COORDINATOR = "coordinator"
    RESUMED = "resumed"
    LEAVING_SEEN = "leaving_seen"
    LOST = "lost"
    RETRY = "retry"
    NO_QUORUM = "no_quorum"
    HOLD = "hold"
    CHECKPOINT = "checkpoint"
    CHECKPOINT_FAILED = "checkpoint_failed"
    STORED = "checkpoint_stored"
    STORE_FAILED = "checkpoint_store_failed"
    DRAIN = "drain"
    DRAINED = "drained"
    DONE = "done"
    NOTICE = "notice"
    REBALANCE = "rebalance"
    METADATA = "metadata"
    CONTROL = "control"
    ORPHANED = "orphaned"
    TAKE_OVER = "take_over"
    WORKER_STARTED = "worker_started"
    WORKER_ENDED = "worker_ended"
    KILLED = "killed"
    LIGHTHOUSE_STARTED = "lighthouse_started"
    LIGHTHOUSE_ENDED = "lighthouse_ended"


def event_words(name: str) -> str:
    """Return the name of an event, which may be unknown here, as people read it."""
    return name.replace("_", " ")
