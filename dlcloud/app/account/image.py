"""`dlcloud image`: make an image with a recipe's environment in it, or list those that were made."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from dlcloud.app.choice import with_chosen_types
from dlcloud.app.context import Context
from dlcloud.app.lifecycle import (
    acquire_for_command,
    confirm_spending,
    launcher_for,
)
from dlcloud.app.packages import pin_packages
from dlcloud.app.recipe_files import read_recipe_file
from dlcloud.app.terminal.screen import say
from dlcloud.app.terminal.signals import Termination, TerminationTexts, holding
from dlcloud.app.termination import destroy_at_end, undo_on_failure
from dlcloud.elastic.agents import program_of as training_of
from dlcloud.launch.acquire import ClusterLock
from dlcloud.launch.image import (
    ImageRequest,
    await_image,
    begin_image,
    builder_recipe,
    builder_types,
    find_begun,
    prepare_instance,
)
from dlcloud.launch.launcher import Launcher
from dlcloud.launch.preflight import find_image
from dlcloud.launch.setup import OLDEST_PYTHON
from dlcloud.model.cluster import OwnImage, image_name
from dlcloud.model.ebs_prices import HOURS_PER_MONTH, snapshot_usd
from dlcloud.model.errors import RecipeError
from dlcloud.model.events import PREFLIGHT, Info, stage
from dlcloud.model.instance import Image
from dlcloud.model.money import money
from dlcloud.planning.plan import Plan
from dlcloud.recipe.recipe import Recipe, RecipeFile
from dlcloud.report.account import images_report
from dlcloud.report.plan_tables import plan_report
from dlcloud.report.table import Format, render
from dlcloud.runs.program import program_of


def run(
    context: Context,
    *,
    recipe: str,
    base: str = "",
    instance_type: str = "",
    dry_run: bool,
    yes: bool,
    cidrs: tuple[str, ...] = (),
    output: str,
) -> None:
    """Make an image with the environment of RECIPE in it, which instances.image then names.

    `base` is the image to begin with, by default the recipe's. An instance of `instance_type`, by default the
    cheapest, makes it.
    """
    if dry_run:
        context.change_nothing()
    if not recipe:
        raise RecipeError("image: a recipe is missing", "dlcloud image RECIPE, or dlcloud image --list")
    source, _ = with_chosen_types(context, read_recipe_file(recipe))
    source = pin_packages(source, paths=context.paths, emit=context.emit)
    maker = ImageMaker(context=context, source=source, base=base, instance_type=instance_type, cidrs=cidrs)
    maker.run(dry_run=dry_run, yes=yes, output=output)


def list_images(context: Context, *, region: str, cloud: str, output: str) -> None:
    """Print the images that were made, and what they cost."""
    context.change_nothing()
    images = context.clouds.cloud(cloud, region).own_images.find()
    _print_images(context, images, region=region, output=output)


@dataclass(frozen=True, kw_only=True)
class ImageMaker:
    """One `dlcloud image`, with the options of the command."""

    context: Context
    source: RecipeFile
    base: str
    instance_type: str
    cidrs: tuple[str, ...]

    @property
    def _recipe(self) -> Recipe:
        return self.source.recipe

    def run(self, *, dry_run: bool, yes: bool, output: str) -> None:
        """Plan, launch, make the image and print it; the instance is terminated, whatever happens."""
        context = self.context
        with stage(context.emit, context.clock, PREFLIGHT):
            request = self._request()
            file = self._builder_file(request)
            plan = launcher_for(context, file).plan(file.recipe, cidrs=self.cidrs)
            plan = replace(plan, workload=f"image {request.name}, of {self._recipe.name}'s environment")
        if dry_run:
            say(render(plan_report(plan), Format(output)))
            return
        say(render(plan_report(plan), Format.TABLE) + "\n", err=True)
        confirm_spending(context, plan, yes=yes)
        with acquire_for_command(context, file) as acquired:
            launcher = context.machines.launcher(acquired.cluster)
            with destroy_at_end(launcher, acquired, keep=False):
                image = self._make(launcher, acquired, plan, request)
        _print_images(context, [image], region=self._recipe.region, output=output)

    def _make(self, launcher: Launcher, acquired: ClusterLock, plan: Plan, request: ImageRequest) -> OwnImage:

        begun = find_begun(launcher) if acquired.unfinished else None
        if begun is None:
            # An instance of a command that was cut off may take no login any more.
            launcher.shrink(launcher.reconcile(consistent=acquired.unfinished))
            launched = launcher.launch(plan)
            (instance_id,) = launched.connections
            prepare_instance(launcher, launched.connections[instance_id], request)
        with _deleting_on_failure(launcher, disk_gib=plan.machine.disk_gib):
            if begun is None:
                with holding():  # broken off, its answer would be lost, and with it the id of what is billed
                    image_id = begin_image(launcher, instance_id, request)
            else:
                image_id = begun.image_id
            image = await_image(launcher, image_id)
            message = f"image {image_id} is available; in recipes: image: {image.name}"
            launcher.emit(Info(message=message))
            return image

    def _request(self) -> ImageRequest:

        recipe, folder = self._recipe, Path(self.source.path).parent
        if recipe.workload.elastic is not None:
            requirements, minimum_python = training_of(recipe, folder, run="").requirements, OLDEST_PYTHON
        else:
            program = program_of(recipe, folder)
            requirements, minimum_python = program.requirements, program.minimum_python
        return ImageRequest(recipe=recipe, requirements=requirements, minimum_python=minimum_python)

    def _builder_file(self, request: ImageRequest) -> RecipeFile:
        """Return the recipe of the instance that makes the image."""
        image = self._base_image()
        account = self.context.clouds.account(self._recipe.cloud, self._recipe.region)
        types = [self.instance_type] if self.instance_type else []
        types = types or builder_types(self._recipe, image, account.known_types())
        return replace(self.source, recipe=builder_recipe(request, types=types, image=image))

    def _base_image(self) -> Image:

        recipe, cloud = self._recipe, self.context.clouds.cloud(self._recipe.cloud, self._recipe.region)
        own = recipe.instances.image.startswith(image_name(""))
        base = self.base or ("auto" if own else recipe.instances.image)
        return find_image(
            cloud.images, base, recipe.instances.types, cloud.types.hardware(recipe.instances.types)
        )


def _deleting_on_failure(launcher: Launcher, *, disk_gib: int) -> AbstractContextManager[None]:
    """Delete the images that a cluster has begun if the block fails; the price of leaving one is printed."""
    image, command = f"the image of {launcher.cluster.name}", f"dlcloud gc {launcher.cluster_id}"
    price = f"{money(snapshot_usd(disk_gib) * HOURS_PER_MONTH)} USD a month at most"
    left = f"{image} may be left, for {price}"
    texts = TerminationTexts(
        doing=f"deleting {image}", otherwise=f"to leave it, for {price}", left=f"{left}; {command} deletes it"
    )
    return undo_on_failure(
        lambda: _delete_images(launcher),
        action=f"deleting {image}",
        left=left,
        termination=Termination(subject=image, command=command, emit=launcher.emit, describe=lambda: texts),
    )


def _delete_images(launcher: Launcher) -> None:
    images = launcher.cloud.own_images
    images.delete([image.image_id for image in images.find(launcher.cluster_id)])


def _print_images(context: Context, images: Sequence[OwnImage], *, region: str, output: str) -> None:

    report = images_report(images, region=region, now=context.clock.now())
    say(render(report, Format(output)))
