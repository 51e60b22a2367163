"""Which recipes can be detached, how they read on the instance, and how a detached cluster is found."""

import pytest

from dlcloud.detached.handover import FILES, check_detachable, relocate_recipe, settle_recipe
from dlcloud.detached.locate import find_detached
from dlcloud.model.cluster import CONTROLLER_TAG, HOST_KEY_TAG
from dlcloud.model.errors import RecipeError
from dlcloud.model.instance import InstanceState
from dlcloud.recipe.recipe import read_recipe
from dlcloud.resources.texts import recipe_names, recipe_text
from tests.fakes.samples import cluster, instance, recipe

ELASTIC = """\
name: mine
instances:
  types: [g6.xlarge]
  count: {min: 1, max: 4}
  market: spot
  on_demand_base: 1
setup:
  commands: |
    echo 'no: yes'
  requirements: [scipy==1.10]
workload:
  command: python3 train.py --name "1.10"
  files: ../../src
  elastic: {}
budget:
  max_usd: 5.50
keep:
  files: ['*.pt']
"""


@pytest.mark.parametrize("name", recipe_names())
def test_every_bundled_recipe_says_there_what_it_says_here(name):
    here = read_recipe(recipe_text(name)[0], name)
    there = read_recipe(relocate_recipe(here), "recipe.yaml")
    files = here.workload.files and FILES
    assert there == here.model_copy(update={"workload": here.workload.model_copy(update={"files": files})})


def test_files_lie_beside_the_recipe_wherever_they_lay(tmp_path):
    here = read_recipe(ELASTIC.replace("../../src", str(tmp_path)), "mine.yaml")
    there = read_recipe(relocate_recipe(here), "recipe.yaml")
    assert there.workload.files == FILES
    assert there.workload.elastic == here.workload.elastic
    assert (there.setup, there.budget, there.keep) == (here.setup, here.budget, here.keep)


def test_the_image_and_what_only_the_user_may_look_up_is_settled_before():
    own = ELASTIC.replace("types: [g6.xlarge]", "types: [g6.xlarge]\n  image: /mine/image") + (
        "network: {security_groups: ['tag:team=a']}\n"
    )
    settled = settle_recipe(recipe(own), "ami-1", ["sg-1"])
    assert settled.instances.image == "ami-1"
    assert settled.network.security_groups == ["sg-1"]
    wide = recipe(f"{ELASTIC}region: [us-east-1, us-west-2]\n").in_region("us-west-2")
    there = read_recipe(relocate_recipe(settle_recipe(wide, "ami-1", [])), "recipe.yaml")
    assert (there.instances.image, there.region, there.regions) == ("ami-1", "us-west-2", [])


def test_a_recipe_whose_controller_may_end_is_not_left_alone():
    check_detachable(recipe(ELASTIC))
    text = "name: mine\ninstances: {types: [c5.large], market: MARKET}\nworkload: {command: x}\n"
    check_detachable(recipe(text.replace("MARKET", "on-demand")))
    with pytest.raises(RecipeError, match="needs at least one on-demand instance"):
        check_detachable(recipe(text.replace("MARKET", "spot")))
    local = ELASTIC.replace("name: mine", "name: mine\ncloud: local")
    with pytest.raises(RecipeError, match="controller would end with it"):
        check_detachable(recipe(f"{local}rehearsal: [{{after: 3, kill: coordinator}}]\n"))


def test_a_controlled_cluster_is_known_by_the_tags_of_its_instance():
    tags = cluster("digits").tags | {CONTROLLER_TAG: "ubuntu", HOST_KEY_TAG: "SHA256:abc"}
    ended = instance("i-0002", tags=tags, state=InstanceState.TERMINATED)
    instances = [instance("i-0001", tags=tags), ended, instance("i-0003", tags=cluster().tags)]
    (detached,) = find_detached(instances, cloud="aws", region="eu-west-1")
    assert (detached.name, detached.cluster_id, detached.user, detached.host_key) == (
        "digits",
        "c0ffee",
        "ubuntu",
        "SHA256:abc",
    )
    assert detached.tags == cluster("digits").tags
    meant = ["digits", "c0ffee", "i-0001", "digits-0a1b2c3d"]
    assert [name for name in [*meant, "digit", "digits-2", "i-0003"] if detached.is_named(name)] == meant
