"""Bring home what an instance that controls its own cluster knows of it, before it ends."""

import shlex
import tempfile
from pathlib import Path

from dlcloud.cli.context import Context
from dlcloud.cli.login import reached
from dlcloud.core.cluster import Cluster
from dlcloud.core.events import Warned, stage
from dlcloud.core.remote import Connection
from dlcloud.core.whereabouts import DetachedCluster
from dlcloud.launch.handover import JOB_FOLDER, job_state
from dlcloud.launch.installed import CONTROL
from dlcloud.launch.remote_jobs import log_tail
from dlcloud.launch.setup import JOB

STORE = "store.sqlite"
# Its own copy, whole: the files of a store that is in use are not.
_COPY = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2]))"


def fetch(context: Context, found: DetachedCluster) -> Cluster:
    """End the controller, and store here the cluster, its runs, their records and files; once or often.

    Returns:
        The cluster, as this home knows it from now on.

    Raises:
        UnreachableError, HostKeyError: The instance does not answer.
        StoreError, RecipeError: What it sent cannot be true.
    """
    name = found.instance.instance_id
    with reached(context, found) as connection:
        if job_state(connection) == "running":
            with stage(context.emit, context.clock, "ending the controller", instance_id=name):
                connection.check(f"{JOB} stop {JOB_FOLDER}")
        with (
            stage(context.emit, context.clock, "bringing the results home", instance_id=name),
            tempfile.TemporaryDirectory() as made,
        ):
            store = _store(connection, Path(made))
            # Files first: a cluster that the store knows has all of its files.
            runs = context.runs_in(store, found.cluster_id)
            patterns = [f"{run_id}/**" for run_id in runs]
            connection.check(f"mkdir -p {CONTROL}/home/runs")
            connection.fetch_files(f"{CONTROL}/home/runs", patterns, context.paths.made(context.paths.runs))
            cluster = context.take_store_home(store, found.cluster_id, name)
        _tell_failure(context, connection, cluster)
    return cluster


def _store(connection: Connection, folder: Path) -> Path:
    copied = f"{CONTROL}/fetched"
    connection.check(
        f"rm -rf {copied} && mkdir {copied} && "
        f"python3 -I -S -c {shlex.quote(_COPY)} {CONTROL}/home/{STORE} {copied}/{STORE}"
    )
    connection.fetch_files(copied, [STORE], folder)
    return folder / STORE


def _tell_failure(context: Context, connection: Connection, cluster: Cluster) -> None:
    """Say why the controller ended, where it did not end well."""
    folder = context.paths.made(context.paths.run(f"{cluster.name}-control"))
    connection.fetch_files(JOB_FOLDER, ["log", "exit_status"], folder)
    ended = folder / "exit_status"
    status = ended.read_text().strip() if ended.exists() else ""
    if status not in {"", "0", "130"}:
        message = f"its controller ended with status {status}:\n{log_tail(folder / 'log')}"
        context.emit(Warned(message=message, instance_id=connection.endpoint.instance_id))
