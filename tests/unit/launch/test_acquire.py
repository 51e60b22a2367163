"""One command at a time manages a cluster, however the command before it ended."""

import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.launch.acquire import acquire_cluster, lock_cluster, remove_secrets, write_user_data
from dlcloud.model.cluster import ClusterState
from dlcloud.model.errors import RecipeError, StoreError
from dlcloud.recipe.recipe import RecipeFile
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.home import Paths, Store
from dlcloud.store.runs import Runs
from tests.fakes.clock import FakeClock
from tests.fakes.samples import RECIPE, recipe, run


class Home:
    """A home folder that several commands use."""

    def __init__(self, folder):
        self.paths = Paths(folder)
        self.paths.make_folder(folder)
        self.database = Database(self.paths.database)
        self.clusters = Clusters(self.database)
        self.clock = FakeClock()

    def claim(self, *, name="", text=RECIPE, path="/project/recipe.yaml", clusters=None):
        """Claim as one `up` does."""
        file = RecipeFile(recipe=recipe(text), text=text, path=path)
        store = Store(clusters=clusters or self.clusters, runs=Runs(self.database), paths=self.paths)
        return acquire_cluster(file, name=name, store=store, clock=self.clock)

    def left(self, state, **how):
        """Leave a cluster behind in a state, as a command that has ended or was killed does."""
        claim = self.claim(**how)
        self.clusters.set_state(claim.cluster.cluster_id, state)
        claim.lock.release()
        return claim.cluster.cluster_id


@pytest.fixture
def home(tmp_path):
    made = Home(tmp_path)
    yield made
    made.database.close()


def test_a_new_cluster_has_its_keys_for_the_user_only_and_is_remembered(home):
    claim = home.claim()
    stored = home.clusters.find(claim.cluster.cluster_id)
    assert stored == claim.cluster
    assert (stored.state, stored.recipe_hash) == (ClusterState.STARTING, recipe().hash)
    assert stored.name.startswith("sample-")
    assert not claim.unfinished
    assert not claim.kept
    folder = home.paths.cluster(stored.cluster_id)
    assert {path.name for path in folder.iterdir()} >= {"key", "host-secret", "lock"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_two_at_once_make_two_clusters(home):
    barrier = threading.Barrier(2)

    def up(_):
        barrier.wait()
        return home.claim()

    with ThreadPoolExecutor(2) as pool:
        claims = list(pool.map(up, range(2)))
    assert len({claim.cluster.cluster_id for claim in claims}) == 2
    assert not any(claim.unfinished for claim in claims)
    assert len({claim.cluster.name for claim in claims}) == 2


@pytest.mark.parametrize("state", [ClusterState.STARTING, ClusterState.RUNNING, ClusterState.STOPPING])
def test_a_cluster_of_a_dead_command_is_continued(home, state):
    left = home.left(state)
    claim = home.claim()
    assert (claim.cluster.cluster_id, claim.cluster.state) == (left, state)
    assert claim.unfinished
    assert not claim.kept
    assert home.claim().cluster.cluster_id != left, "it is taken up once"


@pytest.mark.parametrize(
    ("state", "count"), [(ClusterState.READY, 2), (ClusterState.DOWN, 2), (ClusterState.RUNNING, 3)]
)
def test_one_that_was_kept_or_is_down_or_of_another_recipe_is_left_alone(home, state, count):
    left = home.left(state)
    claim = home.claim(text=RECIPE.replace("count: 2", f"count: {count}"))
    assert claim.cluster.cluster_id != left
    assert lock_cluster(home.clusters.find(left), paths=home.paths).lock


def test_one_of_another_project_with_the_same_recipe_is_left_alone(home):
    left = home.left(ClusterState.RUNNING)
    assert home.claim(path="/other/recipe.yaml").cluster.cluster_id != left
    assert home.claim().cluster.cluster_id == left


def test_one_that_was_kept_when_its_run_failed_is_used_again_with_a_corrected_command(home):
    left = home.left(ClusterState.READY)
    corrected = RECIPE.replace("quantization", "mixed_precision")
    Runs(home.database).add(run(cluster_id=left, state=RunState.FAILED))
    other = home.claim(text=RECIPE.replace("count: 2", "count: 3"))
    assert other.cluster.cluster_id != left
    claim = home.claim(text=corrected)
    assert (claim.cluster.cluster_id, claim.kept) == (left, True)


def test_a_kept_one_is_used_again_by_its_name_with_another_workload(home):
    left = home.left(ClusterState.READY, name="mine")
    claim = home.claim(name="mine", text=RECIPE.replace("benchmark: quantization", "command: ./run"))
    assert claim.cluster.cluster_id == left
    assert claim.kept
    assert not claim.unfinished


def test_a_named_one_with_other_instances_is_refused_and_given_back(home):
    left = home.left(ClusterState.READY, name="mine")
    with pytest.raises(RecipeError, match=r"mine is up with other .*: instances.count is 2, not 3") as caught:
        home.claim(name="mine", text=RECIPE.replace("count: 2", "count: 3"))
    assert "dlcloud down mine" in caught.value.hint
    lock_cluster(home.clusters.find(left), paths=home.paths).lock.release()


def test_a_named_one_in_anothers_charge_is_refused(home):
    claim = home.claim(name="mine")
    with pytest.raises(StoreError, match=r"process \d+ is in charge of mine"):
        home.claim(name="mine")
    claim.lock.release()
    assert home.claim(name="mine").unfinished


class Late(Clusters):
    """Tells of a cluster as active although another command takes it down at that very moment."""

    looked = 0

    def active(self):
        clusters = super().active()
        self.looked += 1
        if self.looked == 1:
            return clusters  # folders are swept first
        for cluster in clusters:
            self.set_state(cluster.cluster_id, ClusterState.DOWN)
        return clusters


def test_a_named_one_that_goes_down_at_that_moment_is_not_worked_on(home):
    left = home.left(ClusterState.READY, name="mine")
    claim = home.claim(name="mine", clusters=Late(home.database))
    assert claim.cluster.cluster_id != left
    assert home.paths.key(claim.cluster.cluster_id).exists()


def test_the_first_boot_is_the_same_text_each_time_and_private_until_its_secrets_are_forgotten(home):
    claim = home.claim()
    text = write_user_data(claim.cluster, life_minutes=60, paths=home.paths)
    assert write_user_data(claim.cluster, life_minutes=60, paths=home.paths) == text
    assert home.paths.host_secret(claim.cluster.cluster_id).read_text() in text
    assert stat.S_IMODE(home.paths.user_data(claim.cluster.cluster_id, 60).stat().st_mode) == 0o600
    for _ in range(2):
        remove_secrets(claim.cluster, paths=home.paths)
        assert not home.paths.cluster(claim.cluster.cluster_id).exists()
