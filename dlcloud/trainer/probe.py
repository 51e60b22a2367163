"""Which workers of a quorum that failed do not answer: a network may be cut between two workers only."""

import socket
import threading
from collections.abc import Mapping

LIMIT_S = 1.0
INTERVAL_S = 1.0
ROUNDS = 30
"""A worker that stays away for longer is no member any more: the lighthouse does not reach it, either."""

Address = tuple[str, int]


class Probes:
    """Connects to suspected workers until each has answered.

    Attributes:
        suspects: Ids of the workers that did not answer the last time.
    """

    interval_s = INTERVAL_S

    def __init__(self) -> None:
        self.suspects: frozenset[str] = frozenset()
        self._round = threading.Event()
        self._number = 0

    def suspect(self, peers: Mapping[str, Address]) -> None:
        """Try each of these workers now, all at once, and go on with those that do not answer."""
        self.clear()
        silent = _find_silent(peers)
        self.suspects = frozenset(silent)
        if silent:
            threading.Thread(target=self._repeat, args=(silent, self._number), daemon=True).start()

    def clear(self) -> None:
        self._number += 1
        self.suspects = frozenset()

    def close(self) -> None:
        self.clear()
        self._round.set()

    def _repeat(self, peers: Mapping[str, Address], number: int) -> None:
        for _ in range(ROUNDS):
            if self._round.wait(INTERVAL_S):
                return
            peers = _find_silent(peers)
            if number != self._number:
                return
            self.suspects = frozenset(peers)
            if not peers:
                return
        self.suspects = frozenset()


def _find_silent(peers: Mapping[str, Address]) -> dict[str, Address]:
    silent: dict[str, Address] = {}

    def probe(name: str, address: Address) -> None:
        try:
            socket.create_connection(address, LIMIT_S).close()
        except OSError:
            silent[name] = address

    threads = [threading.Thread(target=probe, args=item, daemon=True) for item in peers.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
    return silent
