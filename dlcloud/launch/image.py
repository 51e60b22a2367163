"""Make an image of an instance that has a recipe's environment.

EC2 gives a name to one image only, and the name is of the cluster: an image that an earlier command began is
found by the next one, whenever that command ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from shlex import quote

from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.setup import (
    FOLDER,
    commands_digest,
    environment_key,
    packages_of,
    prepare,
    requirements_on,
)
from dlcloud.model.clock import wait_until
from dlcloud.model.cluster import AVAILABLE, IMAGE_TAG, NAME_TAG, PENDING, OwnImage, image_name
from dlcloud.model.errors import CloudError
from dlcloud.model.events import stage
from dlcloud.model.instance import Image, InstanceType
from dlcloud.model.remote import Connection
from dlcloud.planning.fit import KnownType
from dlcloud.recipe.instances import Instances
from dlcloud.recipe.recipe import Budget, Keep, Recipe
from dlcloud.recipe.workload import Setup, Workload
from dlcloud.resources.texts import template

CREATE_IMAGE = "create-image"
"""The intent that precedes the request for an image; its detail is the image's name at EC2."""

LEAST_MEMORY_GIB = 8.0
"""PyTorch's packages for GPUs are installed with a few GiB of memory."""

MOST_TYPES = 3
LIFE_HOURS = 2.0
"""Of the instance: it builds the environment, and must live until the image is there."""

IMAGE_TIMEOUT_S = 3600.0
IMAGE_POLL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """What an image is made of.

    Args:
        recipe: Its set-up commands are run, and its name is the image's.
        requirements: Of its environment, pinned, a line each.
        minimum_python: See `prepare`.
    """

    recipe: Recipe
    requirements: str
    minimum_python: str

    @property
    def name(self) -> str:
        return image_name(self.recipe.name)


def builder_recipe(request: ImageRequest, *, types: Sequence[str], image: Image) -> Recipe:
    """Return the recipe of the cluster that makes an image of another one: a single on-demand instance.

    With another environment it is another recipe, so that no image is taken for one with another content.
    """
    recipe = request.recipe
    instances = Instances(
        types=list(types),
        count=1,
        zones=recipe.instances.zones,
        image=image.image_id,
        user=recipe.instances.user,
        disk_gib=recipe.instances.disk_gib,
    )
    budget = Budget(max_hours=LIFE_HOURS, max_usd=recipe.budget.max_usd)
    values = {
        "name": f"image-{recipe.name}"[:31].rstrip("-"),
        "instances": instances,
        "workload": Workload(command=f"true {environment_key(request.requirements)}"),
        "budget": budget,
        "keep": Keep(),
        "rehearsal": [],
    }
    return recipe.model_copy(update=values)


def builder_types(recipe: Recipe, image: Image, known_types: Sequence[KnownType]) -> list[str]:
    """Return the cheapest types that boot an image and can install its packages, the cheapest first.

    Those are the recipe's own, and all without accelerators: an environment is installed without using it.
    Where no price is known, the recipe's are tried in its order.
    """
    own = set(recipe.instances.types)
    priced = [
        (candidate.hourly_usd, candidate.hardware.name)
        for candidate in known_types
        if candidate.hourly_usd is not None and _can_build(candidate.hardware, image, own)
    ]
    return [name for _, name in sorted(priced)[:MOST_TYPES]] or list(recipe.instances.types)


def _can_build(hardware: InstanceType, image: Image, own: set[str]) -> bool:
    fits = not image.architecture or image.architecture == hardware.architecture
    is_plain = hardware.accelerator is None and hardware.memory_gib >= LEAST_MEMORY_GIB
    return fits and hardware.status == "current" and (is_plain or hardware.name in own)


def prepare_instance(managed: ManagedCluster, connection: Connection, request: ImageRequest) -> None:
    """Build the environments of the recipe's types on an instance, then remove what no image may have.

    The instance takes no login after that.

    Raises:
        RemoteCommandError: A command failed.
        UnreachableError: The connection broke.
    """
    setup, clock, emit = request.recipe.setup, managed.clock, managed.emit
    types = request.recipe.instances.types
    environments = dict.fromkeys(requirements_on(managed, name, request.requirements) for name in types)
    for number, requirements in enumerate(environments):
        python = prepare(
            connection,
            Setup() if number else setup,
            requirements,
            clock=clock,
            emit=emit,
            minimum_python=request.minimum_python,
        )
        if packages_of(requirements) and not setup.image:
            with stage(emit, clock, "compiling the environment", instance_id=connection.endpoint.instance_id):
                connection.check(compile_command(python))
    with stage(emit, clock, "removing keys, secrets and logs", instance_id=connection.endpoint.instance_id):
        connection.send_bytes(template("seal.sh").encode(), f"{FOLDER}/seal.sh")
        # The script removes itself: the shell reads it from its input.
        connection.check(f"sh -s {commands_digest(setup)} <{FOLDER}/seal.sh")


def compile_command(python: str) -> str:
    """Return the command that compiles all modules of an environment: the image's instances then need not.

    Packages may have modules that are not of this version of Python; these are left out.
    """
    library = PurePosixPath(python).parents[1] / "lib"
    return f"{quote(python)} -m compileall -q -j 0 {quote(str(library))} >/dev/null || true"


def begin_image(managed: ManagedCluster, instance_id: str, request: ImageRequest) -> str:
    """Begin to create the image of an instance; return its id."""
    cluster, clusters = managed.cluster, managed.store.clusters
    name = f"{request.name}-{managed.cluster_id}"
    intent_id = clusters.begin_intent(managed.cluster_id, CREATE_IMAGE, name, managed.clock.now())
    tags = {**cluster.tags, NAME_TAG: request.name, IMAGE_TAG: request.name}
    image_id = managed.cloud.own_images.create(instance_id, name, tags)
    clusters.end_intent(intent_id, image_id, managed.clock.now())
    return image_id


def find_begun(managed: ManagedCluster) -> OwnImage | None:
    """Return the image that an earlier command of this cluster began, unless it failed."""
    images = managed.cloud.own_images.find(managed.cluster_id)
    return next((image for image in images if image.state in {PENDING, AVAILABLE}), None)


def await_image(managed: ManagedCluster, image_id: str) -> OwnImage:
    """Wait until an image is available.

    Raises:
        CloudError: It failed, or is not available in an hour.
    """
    with stage(managed.emit, managed.clock, f"creating image {image_id}"):
        image = wait_until(
            lambda: _find(managed, image_id),
            lambda image: image is not None and image.state != PENDING,
            clock=managed.clock,
            timeout_s=IMAGE_TIMEOUT_S,
            poll_s=IMAGE_POLL_S,
            first_poll_s=IMAGE_POLL_S / 10,
        )
    if image is None or image.state != AVAILABLE:
        state = "not listed" if image is None else image.state
        raise CloudError(f"image {image_id} is {state} after {IMAGE_TIMEOUT_S / 60:.0f} minutes at most")
    return image


def _find(managed: ManagedCluster, image_id: str) -> OwnImage | None:
    images = managed.cloud.own_images.find(managed.cluster_id)
    return next((image for image in images if image.image_id == image_id), None)
