"""The collaborators of one command, built in one place, each when it is first asked for.

Every use case gets a `Context`. Entering it makes SIGTERM and SIGHUP end the command as Ctrl-C does and opens
its log; leaving it closes connections, database and console in reverse order. What brings boto3 or paramiko
is imported only when a command asks for it.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cached_property, partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dlcloud.app.cluster_accounts import ClusterAccounts
from dlcloud.app.profiles import CONTROLLER_VARIABLE, chosen_profile, default_region
from dlcloud.app.terminal.console import Console, SilentConsole, console_for
from dlcloud.app.terminal.screen import writer_to
from dlcloud.app.terminal.signals import raise_on
from dlcloud.local.site import ENDPOINT_VARIABLE, LocalEndpoint, LocalSite, SharedSite
from dlcloud.model.account import Owner, owner_digest
from dlcloud.model.cluster import Cluster
from dlcloud.model.errors import LocalCloudError, RecipeError
from dlcloud.model.events import Emit
from dlcloud.store.clusters import Benches, Clusters
from dlcloud.store.database import Database
from dlcloud.store.home import Paths, Store, home_id
from dlcloud.store.measurements import Measurements
from dlcloud.store.runs import Runs

if TYPE_CHECKING:  # these bring boto3 and paramiko, which most commands never need
    from dlcloud.app.clouds import Clouds
    from dlcloud.app.machines import Machines
    from dlcloud.detached.remote_clusters import DetachedClusters


def home() -> Path:
    """Return the folder of all that dlcloud keeps."""
    return Path(os.environ.get("DLCLOUD_HOME") or "~/.dlcloud").expanduser().absolute()


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass
class Context:
    """Collaborators of one command, each made when first asked for; close it with `with`.

    Args:
        command: The command's name, for its log.
        verbose: The log goes to stderr, too.
        in_library: A program calls it, whose log it is.
        quiet: Events are not printed.
    """

    command: str
    verbose: bool = False
    in_library: bool = False
    quiet: bool = False
    clock: SystemClock = field(default_factory=SystemClock)
    _open: ExitStack = field(default_factory=ExitStack)
    _owners: dict[tuple[str, str | None], Owner] = field(default_factory=dict)

    def __enter__(self) -> Self:
        """Make SIGTERM and SIGHUP end the command as Ctrl-C does, so that it cleans up."""
        raise_on(signal.SIGTERM, signal.SIGHUP)
        if not self.in_library:
            log_to_file(self.paths, self.command, verbose=self.verbose)
        return self

    def __exit__(self, *_: object) -> None:
        """Close connections, database and console."""
        self._open.close()

    def at_exit(self, call: Callable[[], object]) -> None:
        """Call something at the end of the command, however it ends, while its collaborators are open."""
        self._open.callback(call)

    @property
    def controller_instance_id(self) -> str:
        """The id of the instance that this process runs on, where it controls its own cluster; else empty."""
        return os.environ.get(CONTROLLER_VARIABLE, "")

    @property
    def tracker_variables(self) -> dict[str, str]:
        """The variables with credentials of trackers, as their own clients read them."""
        return {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_TRACKING_")}

    @cached_property
    def paths(self) -> Paths:
        paths = Paths(home())
        paths.make_folder(paths.home)
        return paths

    @cached_property
    def console(self) -> Console:
        return SilentConsole() if self.quiet else self._open.enter_context(console_for(sys.stderr))

    @cached_property
    def emit(self) -> Emit:
        """The sink of all events: the console."""
        return self.console.emit

    @cached_property
    def clusters(self) -> Clusters:
        return Clusters(self.database)

    @cached_property
    def runs(self) -> Runs:
        return Runs(self.database)

    @cached_property
    def measurements(self) -> Measurements:
        return Measurements(self.database)

    @cached_property
    def benches(self) -> Benches:
        return Benches(self.database)

    @cached_property
    def store(self) -> Store:
        return Store(clusters=self.clusters, runs=self.runs, paths=self.paths)

    def with_emit(self, emit: Emit) -> Self:
        """Return this context with another sink of events; it has the same store."""
        _ = self.store, self.benches, self.clouds
        other = copy(self)
        vars(other)["emit"] = emit
        vars(other).pop("machines", None)
        return other

    @cached_property
    def local_site(self) -> LocalSite | SharedSite:
        """The local EC2 of this home, or the one that DLCLOUD_LOCAL_ENDPOINT names."""
        if os.environ.get(ENDPOINT_VARIABLE):
            return SharedSite.from_environment(os.environ)
        return LocalSite(self.paths.local_site)

    def local_endpoint(self) -> LocalEndpoint:
        """Return the running local EC2.

        Raises:
            LocalCloudError: None runs.
        """
        endpoint = self.local_site.find()
        if endpoint is None:
            raise LocalCloudError("the local EC2 is not running", "dlcloud local start")
        return endpoint

    def change_nothing(self) -> None:
        """State that this command only shows: a local EC2 that it starts is stopped again at its end."""
        self._open.callback(self.local_site.stop_if_unused)

    @cached_property
    def profile(self) -> str:
        """The name of this command's profile for `cloud: aws`; empty without one."""
        name, profile = chosen_profile()
        return name if profile is not None and profile.cloud == "aws" else ""

    @cached_property
    def first_region(self) -> str:
        """The region that is asked which others the account has."""
        return default_region()

    @cached_property
    def clouds(self) -> "Clouds":
        """The clouds and accounts that the command calls."""
        from dlcloud.app.clouds import Clouds  # noqa: PLC0415  it brings boto3

        return Clouds(
            profile=lambda: self.profile,
            first_region=lambda: self.first_region,
            local_site=lambda: self.local_site,
            console=lambda: self.console,
            database=self.database,
            clock=self.clock,
            on_instance=bool(self.controller_instance_id),
            verify=self.accounts.verify,
        )

    @cached_property
    def accounts(self) -> ClusterAccounts:
        """The owner of the clusters, compared with that of the credentials."""
        return ClusterAccounts(clouds=lambda: self.clouds, database=self.database, clock=self.clock)

    @cached_property
    def machines(self) -> "Machines":
        """The instances of clusters, over SSH; their connections are closed with this context."""
        from dlcloud.app.machines import Machines  # noqa: PLC0415  it brings paramiko

        return Machines(
            clouds=lambda: self.clouds,
            store=self.store,
            clock=self.clock,
            emit=self.emit,
            console=lambda: self.console,
            inside=bool(self.controller_instance_id),
            opened=self._open,
        )

    @cached_property
    def detached(self) -> "DetachedClusters":
        from dlcloud.detached.remote_clusters import DetachedClusters  # noqa: PLC0415  few commands need it

        return DetachedClusters(
            store=self.store,
            database=self.database,
            cloud=self.clouds.cloud,
            has_local_site=lambda: self.local_site.find() is not None,
            controller_instance_id=self.controller_instance_id,
            route=self.machines.route_of_detached,
            profile=self.profile,
            first_region=self.first_region,
            clock=self.clock,
            emit=self.emit,
            owner=self.owner,
            verify=self.accounts.verify,
        )

    def owner(self, cloud: str, region: str, profile: str | None = None) -> Owner:
        """Return the owner of the clusters that this command launches; `profile` as for `Clouds.cloud`.

        Raises:
            CloudError: The caller's identity is not known.
        """
        key = (cloud, profile)
        if key not in self._owners:
            arn = self.clouds.cloud(cloud, region, profile).caller.identity().arn
            self._owners[key] = Owner(digest=owner_digest(arn), home=home_id(self.paths))
        return self._owners[key]

    def controls(self, name: str) -> bool:
        """True if this process controls the cluster that a name means: then no cloud has to be asked."""
        cluster = self.store.find_cluster(name)
        is_own = cluster is not None and self.store.controller_of(cluster) is None
        return bool(self.controller_instance_id) or is_own

    def forward_command(self, name: str) -> int | None:
        """Run this very command on the instance that controls a detached cluster; see `DetachedClusters`."""
        if self.controls(name):
            return None
        out, err = writer_to(sys.stdout.buffer), writer_to(sys.stderr.buffer)
        return self.detached.forward_command(name, sys.argv[1:], out=out, err=err)

    def find_cluster(self, name: str) -> Cluster:
        """Return the active cluster of a name or id, or of its beginning; without a name, the only one.

        Raises:
            RecipeError: There is none, or several are meant.
        """
        active = self.clusters.active()
        named = [cluster for cluster in active if not name or name in {cluster.name, cluster.cluster_id}]
        chosen = named or [cluster for cluster in active if cluster.name.startswith(name)]
        if len(chosen) == 1:
            return chosen[0]
        if name and not chosen:
            near = get_close_matches(name, [one.name for one in active], n=1)
            hint = f"dlcloud status {near[0]}" if near else "dlcloud status lists what is up"
            raise RecipeError(f"no cluster {name} is up", hint)
        if not chosen:
            raise RecipeError("no cluster is up", "dlcloud up quickstart")
        names = ", ".join(cluster.name for cluster in chosen)
        hint = f"name one, as in dlcloud {self.command} {chosen[0].name}"
        raise RecipeError(f"several clusters are up: {names}", hint)

    @cached_property
    def database(self) -> Database:
        database = Database(self.paths.database, uses_newer=self.command == "down")
        self._open.callback(database.close)
        return database


LOGS_KEPT = 50


class LogFile(logging.FileHandler):
    """The file of a log, its user's alone; what cannot be written is lost, also where it cannot be opened."""

    def _open(self) -> TextIOWrapper:
        opener = partial(os.open, mode=0o600)
        return open(self.baseFilename, "a", encoding="utf-8", opener=opener)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)


def log_to_file(paths: Paths, command: str, *, verbose: bool) -> None:
    """Log to a new file of a command, and with `verbose` to stderr, too; old files are removed."""
    folder = paths.make_folder(paths.logs)
    for old in sorted(folder.glob("*.log"))[:-LOGS_KEPT]:
        with suppress(OSError):
            old.unlink(missing_ok=True)
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{command}-{os.getpid()}.log"
    logging.raiseExceptions = False  # a log on a full disk is lost, without a traceback on stderr
    handlers: list[logging.Handler] = [LogFile(path, delay=True)]
    if verbose:
        handlers.append(logging.StreamHandler())
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=handlers
    )
    logging.captureWarnings(True)  # those of libraries are for the log, not for users
    # Below this level botocore and paramiko log requests, with headers and keys.
    for library in ("botocore", "boto3", "urllib3", "paramiko"):
        logging.getLogger(library).setLevel(logging.WARNING)
