"""Programs that run on an instance beside its logins, as services do."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from dlcloud.local.instance.container import Container


@dataclass(kw_only=True, eq=False)
class InstanceServices:
    """The services of one instance, by name."""

    container: Container
    _running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def run(self, name: str, argv: list[str], env: Mapping[str, str], *, limit_s: float | None) -> int:
        """Run a program until it ends, or is ended after some seconds; return its exit status.

        Raises:
            OSError: It cannot be started.
        """
        quiet = subprocess.DEVNULL
        process = await self.container.spawn(argv, env=env, stdout=quiet, stderr=quiet)
        self._running[name] = process
        try:
            return await asyncio.wait_for(asyncio.shield(process.wait()), limit_s)
        except TimeoutError:
            self.end(name)
            return await process.wait()
        finally:
            del self._running[name]

    def end(self, name: str) -> None:
        """End a program with what it has started; one that has ended is ignored."""
        if (process := self._running.get(name)) is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
