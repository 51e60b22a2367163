"""A cluster belongs to an account: a command that touches one first compares its credentials with that.

EC2 answers for the caller's account alone. Asked with the credentials of another one, it lists no instance of
a cluster, which then looks terminated while it runs on. So `verify` asks STS for the owner of the
credentials, and refuses those of another account before anything of the cluster is touched, here or in AWS.

The account is stored with the cluster at its first contact: of a new one before anything is requested, of one
that an earlier version launched when EC2 lists one of its instances, which proves that the account is right.

`exec`, `ssh`, `tunnel` and `logs` reach instances by SSH and import no botocore, which would be most of their
start. To them, credentials that were looked up a short time ago are still those of the same account.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dlcloud.app.profiles import configuration_file
from dlcloud.model.clock import Clock
from dlcloud.model.cluster import Cluster
from dlcloud.model.errors import WrongAccountError
from dlcloud.store.cache import AnswerCache
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database

if TYPE_CHECKING:
    from dlcloud.app.clouds import Clouds

_RECENT = timedelta(hours=12)
_SECRETS = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "DLCLOUD_LOCAL_SECRET_ACCESS_KEY",
    "DLCLOUD_LOCAL_TOKEN",
)


@dataclass(kw_only=True)
class ClusterAccounts:
    """Compares the account of a cluster with that of the credentials."""

    clouds: "Callable[[], Clouds]"
    database: Database
    clock: Clock
    _verified: set[str] = field(init=False, default_factory=set)

    def verify(self, cluster: Cluster, *, recent: bool = False, discard: bool = False) -> None:
        """See that the credentials are of the account that a cluster belongs to.

        Args:
            cluster: The cluster; one that is not stored yet will be of the caller's account.
            recent: The owner of a short time ago will do; an unknown account is left unknown.
            discard: Take the caller's account for a cluster without one, even if EC2 lists no instance of it.

        Raises:
            WrongAccountError: They are of another account.
        """
        clusters = Clusters(self.database)
        stored = None if cluster.cluster_id in self._verified else clusters.find(cluster.cluster_id)
        if stored is None or (recent and not stored.account):
            return
        caller = self._recent_caller(stored) if recent and stored.account else None
        if caller is None:
            caller = self._ask(stored)
        partition, account = caller
        if not stored.account:
            if not discard:
                self._prove(stored, account)
            profile = self.clouds().clients.get(stored.cloud, stored.region, stored.profile).aws_profile()
            clusters.set_account(stored.cluster_id, account=account, partition=partition, aws_profile=profile)
        elif (stored.partition, stored.account) != (partition, account):
            raise WrongAccountError(
                f"{stored.name} belongs to account {stored.account}, and these credentials are of account "
                f"{account}: nothing of it was touched",
                _use_account(stored),
            )
        self._verified.add(stored.cluster_id)

    def _ask(self, cluster: Cluster) -> tuple[str, str]:
        """Return the partition and the account of the credentials, as STS knows them now."""
        identity = self.clouds().cloud(cluster.cloud, cluster.region, cluster.profile).caller.identity()
        caller = (identity.partition, identity.account)
        AnswerCache(self.database).put(_credentials(cluster), json.dumps(caller), self.clock.now())
        return caller

    def _recent_caller(self, cluster: Cluster) -> tuple[str, str] | None:
        cached = AnswerCache(self.database).get(_credentials(cluster))
        if cached is None or self.clock.now() - cached[1] > _RECENT:
            return None
        partition, account = json.loads(cached[0])
        return partition, account

    def _prove(self, cluster: Cluster, account: str) -> None:
        """Refuse an account in which EC2 lists none of the instances that should live.

        Raises:
            WrongAccountError: It lists none of them.
        """
        cloud = self.clouds().cloud(cluster.cloud, cluster.region, cluster.profile)
        members = Clusters(self.database).members(cluster.cluster_id)
        living = {
            member.instance.instance_id
            for member in members
            if member.ended_at is None
            and (cloud.began_at is None or member.instance.launched_at >= cloud.began_at)
        }
        if not living or living & {
            instance.instance_id for instance in cloud.instances.find(cluster.cluster_id)
        }:
            return
        raise WrongAccountError(
            f"{cluster.name}: these credentials are of account {account}, in which EC2 lists none of its "
            f"instances in {cluster.region}, not even as terminated: {', '.join(sorted(living))}",
            "use the AWS_PROFILE that it was launched with; "
            f"if they ended long ago, dlcloud down {cluster.name} --discard",
        )


def _credentials(cluster: Cluster) -> str:
    """Return what stands for the credentials that are used now: all that chooses them, without a secret."""
    chosen = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("AWS_", "DLCLOUD_LOCAL_", "DLCLOUD_CONTROLLER")) and name not in _SECRETS
    }
    files = [
        Path(chosen.get("AWS_CONFIG_FILE", "~/.aws/config")),
        Path(chosen.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")),
        configuration_file(),
    ]
    states = []
    for file in files:
        try:
            state = file.expanduser().stat()
            states.append([str(file), state.st_mtime_ns, state.st_size])
        except (OSError, RuntimeError):
            states.append([str(file)])
    text = json.dumps([cluster.cloud, cluster.profile, sorted(chosen.items()), states])
    return f"account of {hashlib.sha256(text.encode()).hexdigest()}"


def _use_account(cluster: Cluster) -> str:
    """Return how to get credentials of the account that a cluster belongs to."""
    from dlcloud.cloud.api.clients import profiles_of_account  # noqa: PLC0415  only for a refusal

    account = cluster.account
    if cluster.profile:
        return f"its profile {cluster.profile} in {configuration_file()} must log in to account {account}"
    if cluster.aws_profile:
        return f"run it with AWS_PROFILE={cluster.aws_profile}, which launched it"
    if profiles := profiles_of_account(account):
        return f"run it with AWS_PROFILE={' or AWS_PROFILE='.join(profiles)}"
    return f"run it with credentials of account {account}; it was launched without an AWS_PROFILE"
