"""The running daemon: the EC2 endpoint in threads, the instances' servers on one event loop."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.local.api.faults import FaultInjector, Visibility
from dlcloud.local.api.server import HttpServer
from dlcloud.local.batch import JobScheduler
from dlcloud.local.capacity.pools import VcpuQuotas
from dlcloud.local.control_pages import ControlPages
from dlcloud.local.ec2.instances import SiteInstances
from dlcloud.local.endpoint import SiteEndpoint
from dlcloud.local.iam.authorization import InstanceRoles
from dlcloud.local.instance.isolation import (
    Isolation,
    find_isolation,
    kill_users,
    place_instances,
)
from dlcloud.local.instance.processes import base_interpreter, clear_leftovers
from dlcloud.local.moto_app import create_moto_app, vcpus_of_types
from dlcloud.local.site_files import AccessKey, Level, SitePaths, SiteState, load_access_key, write_state
from dlcloud.local.tunnels import Tunnels

_BOOT_DELAY_S = 0.2
_END_S = 20.0
_LOOK_S = 1.0

log = logging.getLogger(__name__)


def run(paths: SitePaths) -> None:
    """Serve until SIGTERM, SIGINT or the control page ends it; then terminate every instance."""
    asyncio.run(_serve(paths))


async def _serve(paths: SitePaths) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    paths, isolation = await _isolate(paths)
    roles = InstanceRoles()
    instances = SiteInstances(
        paths=paths,
        isolation=isolation,
        interpreter=base_interpreter(),
        loop=loop,
        boot_delay_s=_BOOT_DELAY_S,
        iam=roles.documents,
    )

    def end() -> None:
        loop.call_soon_threadsafe(ended.set)

    # With a new key, nothing was signed before.
    since = datetime.now(UTC) if paths.access_key.exists() else datetime.fromtimestamp(0, UTC)
    endpoint = _build_endpoint(instances, roles, access_key=load_access_key(paths), since=since, end=end)
    tunnels = Tunnels(access_key=endpoint.access_key)
    server = HttpServer(endpoint.answer, endpoint.allow_body, isolation.users, tunnels.serve)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    watcher = asyncio.create_task(_end_with_the_folder(paths, ended))
    try:
        _announce(paths, endpoint.pages, server.port)
        await ended.wait()
    finally:
        watcher.cancel()
        _end_in_time(isolation, instances)
        # Out of sight first, so that no command finds a daemon that is ending.
        paths.state.unlink(missing_ok=True)
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await instances.close()
        with contextlib.suppress(OSError):
            paths.instances.rmdir()
        log.info("the local cloud ends")


async def _end_with_the_folder(paths: SitePaths, ended: asyncio.Event) -> None:
    """End the daemon once its folder is removed: no command finds it any more."""
    while paths.life_lock.exists():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _LOOK_S)
            return
    log.error("%s is gone: the local cloud ends", paths.folder)
    ended.set()


def _end_in_time(isolation: Isolation, instances: SiteInstances) -> None:
    """Let this process end within a time, whatever it waits for by then."""

    def end() -> None:
        log.error("the local cloud did not end within %.0f s: programs of instances are killed", _END_S)
        kill_users(isolation, instances.users())
        os._exit(1)

    timer = threading.Timer(_END_S, end)
    timer.daemon = True
    timer.start()


async def _isolate(paths: SitePaths) -> tuple[SitePaths, Isolation]:
    """Find what separates instances from the machine, and where they then are; clear what is left there."""
    await clear_leftovers(paths)
    isolation = await find_isolation(paths, interpreter=base_interpreter(), environ=os.environ)
    log.info("isolation of instances: %s %s", isolation.level, isolation.reason)
    if isolation.level is Level.USER:
        paths, isolation = place_instances(paths, isolation)
        await clear_leftovers(paths, isolation.user_ids)
    return paths, isolation


def _build_endpoint(
    instances: SiteInstances,
    roles: InstanceRoles,
    *,
    access_key: AccessKey,
    since: datetime,
    end: Callable[[], None],
) -> SiteEndpoint:
    """Join the parts that answer requests: moto, what it lacks, and the control pages."""
    faults, visibility, catalog = FaultInjector(), Visibility(), Catalog()
    vcpus = vcpus_of_types() | {hardware.name: hardware.vcpus for hardware in catalog}
    quotas = VcpuQuotas(running=instances.running, vcpus=vcpus)

    def client(region: str) -> Any:  # noqa: ANN401  boto3 has no types
        key = (access_key.key_id, access_key.secret)
        return Clients(
            region=region, endpoint_url=pages.state.url if pages.state else "", access_key=key
        ).get("ec2")

    scheduler = JobScheduler(instances, cache(client), vcpus)
    pages = ControlPages(
        instances=instances, roles=roles, quotas=quotas, faults=faults, visibility=visibility, end=end
    )
    return SiteEndpoint(
        moto=create_moto_app(instances, catalog, quotas, visibility, scheduler),
        catalog=catalog,
        instances=instances,
        quotas=quotas,
        faults=faults,
        pages=pages,
        visibility=visibility,
        access_key=access_key,
        since=since,
    )


def _announce(paths: SitePaths, pages: ControlPages, port: int) -> None:
    """Write where the daemon answers; its pages know the token before another process can read it."""
    pages.state = SiteState(
        pid=os.getpid(),
        url=f"http://127.0.0.1:{port}",
        token=secrets.token_urlsafe(32),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_state(paths.state, pages.state)
    log.info("the local cloud answers at %s", pages.state.url)
