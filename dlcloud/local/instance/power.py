"""The timer that an instance's `shutdown` program sets."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from dlcloud.local.instance.local_instance import LocalInstance

_NOLOGIN_MINUTES = 5


@dataclass(kw_only=True, eq=False)
class ShutdownTimer:
    """Shuts an instance down once, and forbids logins in the last five minutes before.

    Source: shutdown(8); another time does not let users in again, only a cancel does.

    Args:
        instance: The instance.
        loop: The loop on which all of this happens.
        shut_down: Ends or stops the instance.
    """

    instance: LocalInstance
    loop: asyncio.AbstractEventLoop
    shut_down: Callable[[], None]
    _handles: list[asyncio.TimerHandle] = field(default_factory=list)

    def obey(self, order: str) -> None:
        """Carry out an order of the program: a delay in seconds, `cancel`, or `reboot`, a no-op."""
        self.cancel()
        if order == "cancel":
            self.instance.forbid_logins(forbid=False)
        elif order != "reboot":
            delay_s = max(0.0, float(order))
            open_s = max(0.0, delay_s - _NOLOGIN_MINUTES * self.instance.minute_s)
            forbid = partial(self.instance.forbid_logins, forbid=True)
            self._handles = [
                self.loop.call_later(open_s, forbid),
                self.loop.call_later(delay_s, self.shut_down),
            ]

    def cancel(self) -> None:
        """Clear the timer, without letting users in again."""
        for handle in self._handles:
            handle.cancel()
        self._handles = []
