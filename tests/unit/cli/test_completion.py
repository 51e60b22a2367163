"""What shells complete: commands, recipes and files, clusters and types."""

import pytest

from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from tests.fakes.samples import cluster


def completed(dlcloud, *words):
    typed = " ".join(["dlcloud", *words])
    done = dlcloud(_DLCLOUD_COMPLETE="bash_complete", COMP_WORDS=typed, COMP_CWORD=str(len(words)))
    return [line.partition(",") for line in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(dlcloud, shell):
    done = dlcloud("completion", shell)
    assert done.status == 0
    assert "_DLCLOUD_COMPLETE" in done.stdout


def test_recipes_and_files_follow_up(dlcloud):
    kinds = completed(dlcloud, "up", "quick")
    assert ("plain", ",", "quickstart") in kinds
    assert "file" in [kind for kind, _, _ in kinds]


def test_clusters_that_are_up_follow_status(dlcloud, home):
    home.mkdir(mode=0o700)
    database = Database(home / "store.sqlite")
    Clusters(database).add(cluster("myelastic-cdf7"))
    database.close()
    assert completed(dlcloud, "status", "my") == [("plain", ",", "myelastic-cdf7")]


def test_types_follow_the_option_of_bench(dlcloud):
    assert ("plain", ",", "c7i.xlarge") in completed(dlcloud, "bench", "-i", "c7i.x")
