"""Take charge of a cluster: a new one, or one that an earlier command left unfinished.

Whoever is in charge holds the cluster's lock, which the kernel gives back when its process dies. So two `up`
at once make two clusters, and an `up` after one that was killed goes on with what that one had made.
"""

import secrets
import shutil
from dataclasses import dataclass

from dlcloud.core.cluster import Cluster, ClusterState
from dlcloud.core.errors import RecipeError, StoreError
from dlcloud.core.protocols import Clock
from dlcloud.core.recipe import Recipe, read_recipe
from dlcloud.resources.texts import user_data
from dlcloud.ssh.host_keys import new_secret
from dlcloud.ssh.keys import create_key, public_key
from dlcloud.store.clusters import Clusters
from dlcloud.store.paths import Paths
from dlcloud.system.files import FileLock, write_file

SWEEP_AGE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLock:
    """A cluster in our charge: `unfinished` if an earlier command began it, `kept` if one kept it up."""

    cluster: Cluster
    lock: FileLock
    unfinished: bool = False
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile:
    """A recipe with the text it was read from and where that lies (empty for a bundled one)."""

    recipe: Recipe
    text: str
    path: str


def acquire_cluster(
    file: RecipeFile, *, name: str, clusters: Clusters, paths: Paths, clock: Clock
) -> ClusterLock:
    """Take charge of the cluster that an `up` of this recipe works on.

    Args:
        file: The recipe.
        name: The cluster's name if the user gave one; else one is made of the recipe's.
        clusters: Where clusters are remembered.
        paths: Where locks and keys lie.
        clock: For the date of a new cluster.

    Raises:
        StoreError: Another command is in charge of the cluster of that name.
        RecipeError: The cluster of that name has other instances than the recipe asks for.
    """
    sweep_folders(clusters=clusters, paths=paths, clock=clock)
    paths.made(paths.home)
    with FileLock(paths.claims_lock):
        for cluster in clusters.active():
            if name and cluster.name == name:
                claim = _claim_named(cluster, file.recipe, clusters=clusters, paths=paths)
            elif not name and cluster.recipe_hash == file.recipe.hash:
                claim = _claim_unfinished(cluster, clusters=clusters, paths=paths)
            else:
                continue
            if claim is not None:
                return claim
        return _claim_new(file, name=name, clusters=clusters, paths=paths, clock=clock)


def earlier_cluster(file: RecipeFile, *, name: str, clusters: Clusters) -> Cluster | None:
    """Return the cluster that `acquire_cluster` would continue; changes nothing."""
    begun = (ClusterState.STARTING, ClusterState.RUNNING)
    for cluster in clusters.active():
        if (
            cluster.name == name
            if name
            else cluster.recipe_hash == file.recipe.hash and cluster.state in begun
        ):
            return cluster
    return None


def lock_existing(cluster: Cluster, *, paths: Paths, wait: bool = False) -> ClusterLock:
    """Take charge of a cluster that exists.

    Raises:
        StoreError: Another command is in charge of it, and `wait` is not asked for.
    """
    paths.made(paths.cluster(cluster.cluster_id))
    lock = FileLock(paths.cluster_lock(cluster.cluster_id))
    if not lock.acquire(wait=wait):
        raise StoreError(
            f"{lock.holder()} is in charge of {cluster.name}",
            "wait for it, or end it with Ctrl-C; it cleans up",
        )
    return ClusterLock(cluster=cluster, lock=lock)


def first_boot(cluster: Cluster, *, life_minutes: int, idle_minutes: int | None = None, paths: Paths) -> str:
    """Return the user data of a cluster's instances; the same text each time, as a repeated request needs.

    Raises:
        StoreError: It cannot be written.
    """
    path = paths.user_data(cluster.cluster_id, life_minutes)
    if not path.exists():
        text = user_data(
            public_key=public_key(paths.key(cluster.cluster_id)),
            secret=paths.host_secret(cluster.cluster_id).read_text(),
            life_minutes=life_minutes,
            idle_minutes=idle_minutes,
            user=cluster.user,
        )
        _write_private(paths, cluster, path.name, text)
    return path.read_text()


def forget_secrets(cluster: Cluster, *, paths: Paths) -> None:
    """Remove the keys of a cluster that is down, and its lock with them."""
    shutil.rmtree(paths.cluster(cluster.cluster_id), ignore_errors=True)


def sweep_folders(*, clusters: Clusters, paths: Paths, clock: Clock) -> None:
    """Remove keys that a crash left: of clusters that are down, or that never came to be remembered."""
    active = {cluster.cluster_id for cluster in clusters.active()}
    for folder in paths.cluster_folders():
        age_s = clock.now().timestamp() - folder.stat().st_mtime
        # A folder is made a moment before it is locked, and locked before its cluster is remembered.
        if folder.name in active or age_s < SWEEP_AGE_S:
            continue
        lock = FileLock(paths.cluster_lock(folder.name))
        if lock.acquire(wait=False):
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()


def _claim_named(cluster: Cluster, recipe: Recipe, *, clusters: Clusters, paths: Paths) -> ClusterLock | None:
    """Return a claim on the cluster of that name; None if it was taken down meanwhile."""
    claim = _with_state(lock_existing(cluster, paths=paths), clusters)
    if claim.cluster.state is ClusterState.DOWN:
        claim.lock.release()
        return None
    old = read_recipe(cluster.recipe_text, cluster.recipe_path)
    if (old.cloud, old.region, old.instances) != (recipe.cloud, recipe.region, recipe.instances):
        claim.lock.release()
        raise RecipeError(
            f"{cluster.name} is up with other instances than {recipe.name} asks for",
            f"dlcloud down {cluster.name}, or choose another --name",
        )
    return claim


def _claim_unfinished(cluster: Cluster, *, clusters: Clusters, paths: Paths) -> ClusterLock | None:
    """Return a claim on a cluster that nobody is in charge of and that was not kept on purpose."""
    try:
        claim = _with_state(lock_existing(cluster, paths=paths), clusters)
    except StoreError:
        return None
    if claim.unfinished:
        return claim
    claim.lock.release()
    return None


def _with_state(claim: ClusterLock, clusters: Clusters) -> ClusterLock:
    """Read the cluster's state again, now that nobody else can change it."""
    cluster = clusters.find(claim.cluster.cluster_id) or claim.cluster
    begun = {ClusterState.STARTING, ClusterState.RUNNING, ClusterState.STOPPING}
    return ClusterLock(
        cluster=cluster,
        lock=claim.lock,
        unfinished=cluster.state in begun,
        kept=cluster.state is ClusterState.READY,
    )


def _claim_new(file: RecipeFile, *, name: str, clusters: Clusters, paths: Paths, clock: Clock) -> ClusterLock:
    recipe = file.recipe
    cluster = Cluster(
        cluster_id=secrets.token_hex(6),
        name=name or f"{recipe.name}-{secrets.token_hex(2)}",
        cloud=recipe.cloud,
        region=recipe.region,
        recipe_text=file.text,
        recipe_path=file.path,
        recipe_hash=recipe.hash,
        state=ClusterState.STARTING,
        user=recipe.instances.user,
        created_at=clock.now(),
        disk_gib=recipe.instances.disk_gib,
    )
    # Locked before it is remembered: no other `up` can take it for an unfinished one.
    claim = lock_existing(cluster, paths=paths)
    create_key(paths.key(cluster.cluster_id))
    _write_private(paths, cluster, paths.host_secret(cluster.cluster_id).name, new_secret())
    clusters.add(cluster)
    return claim


def _write_private(paths: Paths, cluster: Cluster, name: str, text: str) -> None:
    path = paths.made(paths.cluster(cluster.cluster_id)) / name
    try:
        write_file(path, text)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error
