"""Acquire a cluster: a new one, or one that an earlier command left unfinished.

The one command that manages a cluster holds its lock, which the kernel releases when that process dies. So
two `up` at the same time make two clusters, and an `up` after one that was killed continues what that one
began.
"""

import json
import secrets
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from dlcloud.analysis.result import RunState
from dlcloud.model.account import Owner
from dlcloud.model.clock import Clock
from dlcloud.model.cluster import NO_OWNER, Cluster, ClusterState
from dlcloud.model.errors import RecipeError, StoreError
from dlcloud.recipe.recipe import Recipe, RecipeFile, read_recipe
from dlcloud.resources.texts import user_data
from dlcloud.ssh.keys import create_key, new_secret, public_key
from dlcloud.store.home import Paths, Store
from dlcloud.system.files import FileLock, write_file

STALE_FOLDER_AGE_S = 60.0
BEGUN = (ClusterState.STARTING, ClusterState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLock(AbstractContextManager["ClusterLock"]):
    """A cluster that this command manages: `unfinished` if an earlier one began it, `kept` if one kept it up.

    As a context manager it releases the lock at the end.
    """

    cluster: Cluster
    lock: FileLock
    unfinished: bool = False
    kept: bool = False

    def release(self) -> None:
        self.lock.release()

    def __exit__(self, *_: object) -> None:
        self.release()


def acquire_cluster(
    file: RecipeFile, *, name: str, store: Store, clock: Clock, owner: Owner = NO_OWNER
) -> ClusterLock:
    """Acquire the cluster that an `up` of this recipe works on.

    Without a name of the user's, one is derived from the recipe's. A new one is tagged as the owner's.

    Raises:
        StoreError: Another command manages the cluster of that name.
        RecipeError: The cluster of that name has other instances than the recipe asks for.
    """
    remove_stale_folders(store=store, clock=clock)
    store.paths.make_folder(store.paths.home)
    with FileLock(store.paths.claims_lock):
        for cluster in store.clusters.active():
            if name and cluster.name == name:
                acquired = _acquire_named(cluster, file, store)
            elif not name and (file.is_of(cluster) or is_kept_after_failure(cluster, file, store)):
                acquired = _acquire_unfinished(cluster, file, store)
            else:
                continue
            if acquired is not None:
                return acquired
        return _create(new_cluster(file, name=name, clock=clock, owner=owner), store)


def resolve_cluster(file: RecipeFile, *, name: str, store: Store) -> Cluster | None:
    """Return the cluster that `acquire_cluster` would continue; changes nothing."""
    for cluster in store.clusters.active():
        if name and cluster.name == name:
            return cluster
        if not name and file.is_of(cluster) and cluster.state in BEGUN:
            return cluster
        if not name and is_kept_after_failure(cluster, file, store):
            return cluster
    return None


def is_kept_after_failure(cluster: Cluster, file: RecipeFile, store: Store) -> bool:
    """True if a cluster was kept up when a run of the same recipe file failed, and its instances still fit.

    Its command, packages or budget may be corrected since.
    """
    if cluster.state is not ClusterState.READY or not file.path:
        return False
    if (cluster.recipe_path, cluster.profile) != (file.path, file.profile):
        return False
    old, recipe = read_recipe(cluster.recipe_text, cluster.recipe_path), file.recipe
    asked = (old.name, old.regions, *_of_launch(old.in_region(recipe.region)))
    if asked != (recipe.name, recipe.regions, *_of_launch(recipe)):
        return False
    if not recipe.regions and cluster.region != recipe.region:
        return False
    if store.clusters.controller_instance_id(cluster.cluster_id):
        return False
    runs = store.runs.of_cluster(cluster.cluster_id)
    return bool(runs) and runs[-1].state is RunState.FAILED


def clusters_at_work(file: RecipeFile, *, store: Store) -> dict[str, str]:
    """Return what runs the same recipe now: the process in charge, by the name of its cluster."""
    locks = {
        cluster.name: FileLock(store.paths.cluster_lock(cluster.cluster_id))
        for cluster in store.clusters.active()
        if file.is_of(cluster)
    }
    return {name: lock.holder() for name, lock in locks.items() if lock.is_held()}


def new_cluster(file: RecipeFile, *, name: str, clock: Clock, owner: Owner = NO_OWNER) -> Cluster:
    """Return a cluster for a recipe, which nothing remembers yet."""
    recipe = file.recipe
    tags = {**recipe.tags, **(owner.tags if owner.digest else {})}
    return Cluster(
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
        profile=file.profile,
        network="" if recipe.network is None else recipe.network.model_dump_json(),
        own_tags=json.dumps(tags, sort_keys=True) if tags else "",
    )


def lock_cluster(cluster: Cluster, *, paths: Paths) -> ClusterLock:
    """Lock a cluster that exists.

    Raises:
        StoreError: Another command manages it.
    """
    paths.make_folder(paths.cluster(cluster.cluster_id))
    lock = FileLock(paths.cluster_lock(cluster.cluster_id))
    if not lock.acquire(wait=False):
        raise StoreError(
            f"{lock.holder()} is in charge of {cluster.name}",
            "wait for it, or end it with Ctrl-C; it cleans up",
        )
    return ClusterLock(cluster=cluster, lock=lock)


def write_user_data(
    cluster: Cluster, *, life_minutes: int, idle_minutes: int | None = None, paths: Paths
) -> str:
    """Return the user data of a cluster's instances, written once: a repeated request needs the same text.

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


def remove_secrets(cluster: Cluster, *, paths: Paths) -> None:
    """Remove the keys of a cluster that is down, and its lock with them."""
    shutil.rmtree(paths.cluster(cluster.cluster_id), ignore_errors=True)


def remove_stale_folders(*, store: Store, clock: Clock) -> None:
    """Remove keys that a crash left: of clusters that are down, or that the store never came to know."""
    active = {cluster.cluster_id for cluster in store.clusters.active()}
    for folder in store.paths.cluster_folders():
        age_s = clock.now().timestamp() - folder.stat().st_mtime
        # A folder is made a moment before it is locked, and locked before its cluster is remembered.
        if folder.name in active or age_s < STALE_FOLDER_AGE_S:
            continue
        lock = FileLock(store.paths.cluster_lock(folder.name))
        if lock.acquire(wait=False):
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()


def _acquire_earlier(cluster: Cluster, store: Store) -> ClusterLock | None:
    """Lock a cluster, and read its state again, which no other command can change now; None if it is down."""
    acquired = lock_cluster(cluster, paths=store.paths)
    cluster = store.clusters.find(cluster.cluster_id) or cluster
    if cluster.state is ClusterState.DOWN:
        acquired.release()
        return None
    is_kept = cluster.state is ClusterState.READY
    return replace(acquired, cluster=cluster, unfinished=not is_kept, kept=is_kept)


def _acquire_named(cluster: Cluster, file: RecipeFile, store: Store) -> ClusterLock | None:
    acquired = _acquire_earlier(cluster, store)
    old, recipe = read_recipe(cluster.recipe_text, cluster.recipe_path), file.recipe
    if acquired and cluster.profile != file.profile:
        acquired.release()
        raise RecipeError(
            f"{cluster.name} was launched with {_named(cluster.profile)}, not with {_named(file.profile)}",
            f"dlcloud down {cluster.name}, or choose another --name or --profile",
        )
    if acquired and _of_launch(old) != _of_launch(recipe):
        acquired.release()
        raise RecipeError(
            f"{cluster.name} is up with other instances than {recipe.name} asks for: "
            f"{'; '.join(_differences(old, recipe))}",
            f"dlcloud down {cluster.name}, or choose another --name",
        )
    return acquired


def _differences(old: Recipe, new: Recipe) -> list[str]:
    """Return which keys of the instances differ, with both values."""
    before, after = (
        {"cloud": recipe.cloud, "region": recipe.region, "network": recipe.network}
        | {f"instances.{key}": value for key, value in recipe.instances}
        for recipe in (old, new)
    )
    return [f"{key} is {before[key]}, not {after[key]}" for key in before if before[key] != after[key]]


def _of_launch(recipe: Recipe) -> tuple[object, ...]:
    """Return what instances cannot change once they are launched."""
    return (recipe.cloud, recipe.region, recipe.instances, recipe.network)


def _named(profile: str) -> str:
    return f"the profile {profile}" if profile else "no profile"


def _acquire_unfinished(cluster: Cluster, file: RecipeFile, store: Store) -> ClusterLock | None:
    """Acquire a cluster that no command manages, and that was not kept, or kept because its run failed."""
    try:
        acquired = _acquire_earlier(cluster, store)
    except StoreError:
        return None
    if acquired and acquired.kept and not is_kept_after_failure(acquired.cluster, file, store):
        acquired.release()
        return None
    return acquired


def _create(cluster: Cluster, store: Store) -> ClusterLock:
    # Locked before it is remembered: no other `up` can take it for an unfinished one.
    acquired = lock_cluster(cluster, paths=store.paths)
    create_key(store.paths.key(cluster.cluster_id))
    _write_private(store.paths, cluster, store.paths.host_secret(cluster.cluster_id).name, new_secret())
    store.clusters.add(cluster)
    return acquired


def _write_private(paths: Paths, cluster: Cluster, name: str, text: str) -> None:
    path = paths.make_folder(paths.cluster(cluster.cluster_id)) / name
    try:
        write_file(path, text)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error
