"""A cluster: the instances of one recipe, their state and their tags, and what else carries those tags.

The tags are set when something is created, and are the truth about what exists; the store remembers what a
cluster was launched for, its instances' prices, and the intents of what was requested.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from dlcloud.model.account import Owner
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import Instance

IMAGE_TAG = "dlcloud:image"
"""On an image and its snapshot; its value is the name by which recipes know the image."""
UNUSED_AFTER = timedelta(days=30)
PENDING, AVAILABLE = "pending", "available"
DEFAULT_REGION = "us-east-1"
"""The region of recipes that name none, and the one that is asked which others the account has."""
REGIONS_AT_ONCE = 8
"""This many regions are listed at a time."""
MANAGED_TAG = "dlcloud:managed"
NEW_GROUP = "cluster"
"""dlcloud makes a placement group of this strategy, and deletes it with the cluster."""
CLUSTER_TAG = "dlcloud:cluster"
NAME_TAG = "Name"
SSH_PORT_TAG = "dlcloud:ssh-port"
"""The tag with the port of an instance's SSH server, if that is not 22."""
CONTROLLER_TAG = "dlcloud:controller"
"""On the instance that controls its own cluster; its value is the login user."""
HOST_KEY_TAG = "dlcloud:host-key"
"""The SHA256 fingerprint of an instance's host key, set by the launcher that verified it."""
CLAIM_TAG = "dlcloud:claimed-by"
"""On a claim of the control of a cluster: the instance that made it."""
ACCESS_TAG = "dlcloud:access"
"""How SSH reaches the instances of a cluster, if not by public addresses."""
PUBLIC = "public"
NO_OWNER = Owner()
_NAME_PREFIX = "dlcloud "


class ClusterState(StrEnum):
    """The state of a cluster; every state before DOWN may cost money. READY: kept up, and idle."""

    STARTING = "starting"
    RUNNING = "running"
    READY = "ready"
    STOPPING = "stopping"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One cluster, as stored.

    `profile` names the profile of the configuration that it was launched with; `own_tags` are the user's, and
    `network` is the recipe's, each as JSON or empty. `account` and `partition` name its owner, once
    it is known: no command touches it with credentials of another account. `aws_profile` is the AWS CLI's
    profile that reached it.
    """

    cluster_id: str
    name: str
    cloud: str
    region: str
    recipe_text: str
    recipe_path: str
    recipe_hash: str
    state: ClusterState
    user: str
    created_at: datetime
    disk_gib: int
    ended_at: datetime | None = None
    profile: str = ""
    own_tags: str = ""
    network: str = ""
    account: str = ""
    partition: str = ""
    aws_profile: str = ""

    @property
    def is_private(self) -> bool:
        """True if SSH goes to the private addresses of its instances."""
        return json.loads(self.network).get("access", PUBLIC) != PUBLIC if self.network else False

    @property
    def tags(self) -> dict[str, str]:
        """The tags of every resource of this cluster, set at its creation."""
        own: dict[str, str] = json.loads(self.own_tags) if self.own_tags else {}
        if self.is_private:
            own[ACCESS_TAG] = json.loads(self.network)["access"]
        named = f"{_NAME_PREFIX}{self.name}"
        return {**own, MANAGED_TAG: "true", CLUSTER_TAG: self.cluster_id, NAME_TAG: named}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An instance of a cluster with the price it was planned at; None where no price is known.

    `interrupted`: EC2 took it back, as it does with spot instances.
    """

    instance: Instance
    hourly_usd: Decimal | None = None
    price_source: str = ""
    price_as_of: datetime | None = None
    ended_at: datetime | None = None
    interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """An action that was about to be taken; `outcome` is None until it ended.

    `fleet_id` and `instance_ids`: what it launched, or the instances that it ends.
    """

    intent_id: int
    action: str
    detail: str
    begun_at: datetime
    outcome: str | None
    ended_at: datetime | None = None
    fleet_id: str = ""
    instance_ids: tuple[str, ...] = ()

    @property
    def at(self) -> datetime:
        """When its effect was last known to begin."""
        return self.ended_at or self.begun_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A resource with dlcloud's tag that no command manages.

    `kind` is AWS's word (`instance`, `volume`, `iam-role`, ...). `instance` and `image` are set for one,
    `size_gib` for what has a size.
    """

    kind: str
    resource_id: str
    cluster_id: str
    name: str
    region: str
    instance: Instance | None = None
    size_gib: int = 0
    image: "OwnImage | None" = None
    owner: Owner = NO_OWNER


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnImage:
    """An image as EC2 describes it; `name` is the one of recipes, `size_gib` that of its volume.

    `launched_at` is the time of its last launch, which EC2 reports a day later.
    """

    image_id: str
    name: str
    state: str
    architecture: str
    cluster_id: str
    created_at: datetime
    size_gib: int
    snapshot_ids: tuple[str, ...] = ()
    launched_at: datetime | None = None


def image_name(recipe_name: str) -> str:
    """Return the name by which recipes know the image of a recipe."""
    return f"dlcloud-{recipe_name}"


def stale_reason(image: OwnImage, images: Sequence[OwnImage], now: datetime) -> str:
    """Return why an image is not needed any more; empty for one that may be.

    Args:
        image: One of `images`.
        images: All of the region.
        now: The present time.
    """
    if image.state not in {PENDING, AVAILABLE}:
        return image.state
    newer = [other for other in images if _supersedes(other, image)]
    if newer:
        return f"superseded by {max(newer, key=lambda other: other.created_at).image_id}"
    unused = now - max(image.created_at, image.launched_at or image.created_at)
    return f"not launched for {unused.days} days" if unused >= UNUSED_AFTER else ""


def _supersedes(other: OwnImage, image: OwnImage) -> bool:
    same = (other.name, other.architecture) == (image.name, image.architecture)
    return same and other.state == AVAILABLE and other.created_at > image.created_at


def select_members(cluster: Cluster, members: Sequence[Member], instance: str) -> list[Member]:
    """Return the running members, or the one with this instance id or number (from 1).

    Raises:
        RecipeError: There is none.
    """
    running = [member for member in members if member.ended_at is None and member.instance.host]
    if not instance and running:
        return running
    selected = [
        member
        for number, member in enumerate(running, start=1)
        if instance in {str(number), member.instance.instance_id}
    ]
    if not selected:
        ids = ", ".join(member.instance.instance_id for member in running) or "none"
        raise RecipeError(f"{cluster.name} has no instance {instance}".rstrip(), f"its instances: {ids}")
    return selected


def control_role_name(cluster_id: str) -> str:
    """Return the name of the role, and of the instance profile, of a cluster's own controllers."""
    return f"dlcloud-{cluster_id}"


def cluster_name(tags: Mapping[str, str]) -> str:
    """Return the name of the cluster that something with these tags belongs to; empty without one."""
    return tags.get(NAME_TAG, "").removeprefix(_NAME_PREFIX)


def client_token(cluster: Cluster, *request: str | int) -> str:
    """Return the idempotency token of one launch request: the same request gives the same token.

    A changed request (another pool) must have another token, or EC2 answers IdempotentParameterMismatch.

    Source: EC2 API reference, "Ensuring idempotency": up to 64 ASCII characters.
    """
    text = "\0".join((cluster.cluster_id, cluster.recipe_hash, *(str(part) for part in request)))
    return hashlib.sha256(text.encode()).hexdigest()


def placement_group_name(cluster_id: str) -> str:
    """Return the name of a cluster's own placement group, `cluster` in a recipe."""
    return f"dlcloud-{cluster_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlClaim:
    """An instance's claim of a term of control, from 1; term 0 is the coordinator that the launcher chose."""

    term: int
    instance_id: str
    at: datetime
