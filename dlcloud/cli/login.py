"""Log in on the instance that controls a cluster, from any machine with the account."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dlcloud.cli.context import Context
from dlcloud.core.remote import Connection
from dlcloud.core.whereabouts import DetachedCluster
from dlcloud.ssh.dial import Dialer
from dlcloud.ssh.keys import create_key

LOGIN_WAIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The files by which one logs in: a private key, and the pinned host keys."""

    key: Path
    known_hosts: Path


@contextmanager
def reached(context: Context, found: DetachedCluster) -> Iterator[Connection]:
    """Log in on the instance, as `logged_in`."""
    with logged_in(context, found) as (connection, _):
        yield connection


@contextmanager
def logged_in(context: Context, found: DetachedCluster) -> Iterator[tuple[Connection, Login]]:
    """Log in on the instance: with the cluster's key where this home has it, else with one for the moment.

    Raises:
        UnreachableError: It does not answer, or takes no keys.
        HostKeyError: Another machine answers.
    """
    cloud = context.cloud(found.cloud, found.region)
    group_id = cloud.create_security_group(found.cluster_id, found.tags)
    cloud.allow_ssh(group_id, cloud.caller_cidr())
    with tempfile.TemporaryDirectory() as made:
        key = context.paths.key(found.cluster_id)
        if not key.exists():
            key = Path(made) / "key"
            cloud.admit_key(found.instance, found.user, create_key(key))
        files = Login(key=key, known_hosts=Path(made) / "known_hosts")
        dialer = Dialer(
            key_path=key,
            known_hosts=files.known_hosts,
            secret=lambda _: None,
            fingerprint=found.host_key,
            clock=context.clock,
            loopback_only=found.cloud == "local",
        )
        try:
            yield dialer.dial(found.instance.endpoint(found.user), wait_s=LOGIN_WAIT_S), files
        finally:
            dialer.close()
