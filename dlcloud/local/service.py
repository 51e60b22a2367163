"""The running daemon: the EC2 endpoint in threads, the instances' servers on one event loop."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import threading
from datetime import UTC, datetime

from dlcloud.local.books import open_books
from dlcloud.local.catalogue import Catalogue, read_catalogue
from dlcloud.local.control_pages import ControlPages
from dlcloud.local.endpoint import Endpoint
from dlcloud.local.faults import Disturbances
from dlcloud.local.fleets import POOL_ERROR_HEADER, POOL_ERRORS
from dlcloud.local.machines import Machines, clear_left_behind
from dlcloud.local.quotas import VcpuQuotas
from dlcloud.local.roles import InstanceRoles
from dlcloud.local.server import WsgiServer
from dlcloud.local.state import SitePaths, SiteState, write_state

_BOOT_DELAY_S = 0.2

log = logging.getLogger(__name__)


def run(paths: SitePaths) -> None:
    """Serve until SIGTERM, SIGINT or the control page says to end; then end every instance."""
    asyncio.run(_serve(paths))


async def _serve(paths: SitePaths) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    await clear_left_behind(paths)
    roles = InstanceRoles()
    machines = Machines(paths=paths, loop=loop, boot_delay_s=_BOOT_DELAY_S, roles=roles)
    disturbances = Disturbances()

    def end() -> None:
        loop.call_soon_threadsafe(ended.set)

    catalogue = read_catalogue()
    vcpus = {kind: row.vcpus for kind, row in catalogue.rows.items()}
    quotas = VcpuQuotas(living=machines.living, vcpus=vcpus)
    pages = ControlPages(machines=machines, quotas=quotas, disturbances=disturbances, end=end)
    server = WsgiServer(_endpoint(machines, quotas, disturbances, pages, catalogue))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        pages.state = _announce(paths, server.port)
        await ended.wait()
    finally:
        # First out of sight, so that no command finds a daemon that is going.
        paths.state.unlink(missing_ok=True)
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await machines.close()
        with contextlib.suppress(OSError):
            paths.instances.rmdir()
        log.info("the local cloud ends")


def _endpoint(
    machines: Machines,
    quotas: VcpuQuotas,
    disturbances: Disturbances,
    pages: ControlPages,
    catalogue: Catalogue,
) -> Endpoint:
    return Endpoint(
        books=open_books(machines, catalogue, quotas),
        catalogue=catalogue,
        machines=machines,
        roles=machines.roles,
        quotas=quotas,
        disturbances=disturbances,
        pages=pages,
        pool_errors=(POOL_ERRORS, POOL_ERROR_HEADER),
    )


def _announce(paths: SitePaths, port: int) -> SiteState:
    state = SiteState(
        pid=os.getpid(),
        url=f"http://127.0.0.1:{port}",
        token=secrets.token_urlsafe(32),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_state(paths.state, state)
    log.info("the local cloud answers at %s", state.url)
    return state
