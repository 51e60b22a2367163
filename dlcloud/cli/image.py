"""`dlcloud image`: make an image with a recipe's environment in it, or list those that were made."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlcloud.cli.complete import complete_recipes
from dlcloud.cli.options import cidr_option, output_option, verbose_option
from dlcloud.cli.profiles import read_recipe_file
from dlcloud.model.cluster import DEFAULT_REGION
from dlcloud.model.errors import RecipeError
from dlcloud.model.events import PREFLIGHT, Notice, stage
from dlcloud.model.own_images import image_name
from dlcloud.report.table import Format, render

if TYPE_CHECKING:
    from dlcloud.cli.context import Context
    from dlcloud.launch.acquire import ClusterLock, RecipeFile
    from dlcloud.launch.image import ImageRequest
    from dlcloud.launch.launcher import Launcher
    from dlcloud.model.instance import Image
    from dlcloud.model.own_images import OwnImage
    from dlcloud.planning.plan import Plan
    from dlcloud.recipe.recipe import Recipe


@click.command("image")
@click.argument("recipe", default="", shell_complete=complete_recipes)
@click.option("--list", "listed", is_flag=True, help="Print the images that were made, and what they cost.")
@click.option("--region", default=DEFAULT_REGION, show_default=True, help="Of --list.")
@click.option(
    "--cloud", type=click.Choice(["aws", "local"]), default="aws", show_default=True, help="Of --list."
)
@click.option("--from", "base", default="", help="The image to begin with; default: the recipe's.")
@click.option("--type", "instance_type", default="", help="The type that makes it; default: the cheapest.")
@click.option("--dry-run", is_flag=True, help="Show the plan with its prices; create nothing.")
@click.option("-y", "--yes", is_flag=True, help="Spend without asking.")
@cidr_option("the instance")
@output_option
@verbose_option
def command(
    *,
    recipe: str,
    listed: bool,
    region: str,
    cloud: str,
    base: str,
    instance_type: str,
    dry_run: bool,
    yes: bool,
    cidrs: tuple[str, ...],
    output: str,
    verbose: bool,
) -> None:
    """Make an image with the environment of RECIPE in it, which instances.image then names.

    Launches one instance, runs the recipe's set-up commands, installs its packages, removes keys and secrets,
    makes the image, and terminates the instance. Instances of the image are set up at once. Commands whose
    effect does not survive a reboot belong to the workload, as they are not repeated. Run it again after a
    change of the packages; `dlcloud gc` removes images that are superseded or unused.
    """
    from dlcloud.cli.context import Context

    with Context("image", verbose=verbose) as context:
        if listed:
            images = context.cloud(cloud, region).own_images()
            _print_images(context, images, region=region, output=output)
            return
        if not recipe:
            raise RecipeError("image: a recipe is missing", "dlcloud image RECIPE, or dlcloud image --list")
        maker = ImageMaker(
            context=context,
            source=read_recipe_file(recipe),
            base=base,
            instance_type=instance_type,
            cidrs=cidrs,
        )
        maker.run(dry_run=dry_run, yes=yes, output=output)


@dataclass(frozen=True, kw_only=True)
class ImageMaker:
    """One `dlcloud image`, with the options of the command."""

    context: "Context"
    source: "RecipeFile"
    base: str
    instance_type: str
    cidrs: tuple[str, ...]

    @property
    def _recipe(self) -> "Recipe":
        return self.source.recipe

    def run(self, *, dry_run: bool, yes: bool, output: str) -> None:
        """Plan, launch, make the image and print it; the instance is terminated, whatever happens."""
        from dlcloud.cli.lifecycle import acquire_for_command, confirm_spending, destroy_at_end, plan_cluster
        from dlcloud.report.plan import plan_report

        context = self.context
        with stage(context.emit, context.clock, PREFLIGHT):
            request = self._request()
            file = self._builder_file(request)
            plan = plan_cluster(context, file, name="", cidrs=self.cidrs)
            plan = replace(plan, workload=f"image {request.name}, of {self._recipe.name}'s environment")
        if dry_run:
            click.echo(render(plan_report(plan), Format(output)))
            return
        click.echo(render(plan_report(plan), Format.TABLE) + "\n", err=True)
        confirm_spending(plan, yes=yes)
        with acquire_for_command(context, file) as acquired:
            launcher = context.launcher(acquired.cluster)
            with destroy_at_end(launcher, acquired, keep=False):
                image = self._make(launcher, acquired, plan, request)
        message = f"image {image.image_id} is available; in recipes: image: {image.name}"
        context.emit(Notice(message=message))
        _print_images(context, [image], region=self._recipe.region, output=output)

    def _make(
        self, launcher: "Launcher", acquired: "ClusterLock", plan: "Plan", request: "ImageRequest"
    ) -> "OwnImage":
        from dlcloud.cli.lifecycle import undo_on_failure
        from dlcloud.launch.image import await_image, begin_image, find_begun, prepare_instance

        begun = find_begun(launcher) if acquired.unfinished else None
        if begun is None:
            # An instance of a command that was cut off may take no login any more.
            launcher.shrink(launcher.reconcile(consistent=acquired.unfinished))
            launched = launcher.launch(plan)
            (instance_id,) = launched.connections
            prepare_instance(launcher, launched.connections[instance_id], request)
        image_id = begun.image_id if begun else begin_image(launcher, instance_id, request)
        with undo_on_failure(
            launcher.emit,
            f"deleting image {image_id}",
            lambda: launcher.cloud.delete_images([image_id]),
            left=f"image {image_id} may be left",
            hint=f"dlcloud gc {launcher.cluster_id}",
        ):
            return await_image(launcher, image_id)

    def _request(self) -> "ImageRequest":
        from dlcloud.launch.image import ImageRequest

        recipe, folder = self._recipe, Path(self.source.path).parent
        if recipe.workload.elastic is not None:
            from dlcloud.elastic.program import program_of as training_of
            from dlcloud.launch.setup import OLDEST_PYTHON

            requirements, minimum_python = training_of(recipe, folder, run="").requirements, OLDEST_PYTHON
        else:
            from dlcloud.runs.program import program_of

            program = program_of(recipe, folder)
            requirements, minimum_python = program.requirements, program.minimum_python
        return ImageRequest(recipe=recipe, requirements=requirements, minimum_python=minimum_python)

    def _builder_file(self, request: "ImageRequest") -> "RecipeFile":
        """Return the recipe of the instance that makes the image."""
        from dlcloud.launch.image import builder_recipe, builder_types

        image = self._base_image()
        account = self.context.account(self._recipe.cloud, self._recipe.region)
        types = [self.instance_type] if self.instance_type else []
        types = types or builder_types(self._recipe, image, account.known_types())
        return replace(self.source, recipe=builder_recipe(request, types=types, image=image))

    def _base_image(self) -> "Image":
        from dlcloud.launch.preflight import find_image

        recipe, cloud = self._recipe, self.context.cloud(self._recipe.cloud, self._recipe.region)
        own = recipe.instances.image.startswith(image_name(""))
        base = self.base or ("auto" if own else recipe.instances.image)
        return find_image(cloud, base, recipe.instances.types, cloud.hardware(recipe.instances.types))


def _print_images(context: "Context", images: Sequence["OwnImage"], *, region: str, output: str) -> None:
    from dlcloud.report.account import images_report

    report = images_report(images, region=region, now=context.clock.now())
    click.echo(render(report, Format(output)))
