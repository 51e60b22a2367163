"""`dlcloud bench`: the same work on several instance types, and one table of what each costs."""

import click

from dlcloud.cli.options import output_option, verbose_option


@click.command("bench")
@click.option(
    "-i",
    "--instance",
    "types",
    multiple=True,
    metavar="TYPE",
    help="An instance type; repeat it. Default: those of --recipe.",
)
@click.option(
    "-b",
    "--benchmark",
    "benchmarks",
    multiple=True,
    metavar="NAME",
    help="A bundled benchmark; default: all.",
)
@click.option(
    "--recipe", default="", help="Run the workload of this recipe instead (a file, or a bundled one)."
)
@click.option("--cloud", type=click.Choice(["aws", "local"]), default=None, help="Default: aws.")
@click.option("--region", default=None, help="Default: us-east-1.")
@click.option("--spot", is_flag=True, help="Spot instances instead of on-demand ones.")
@click.option("--max-hours", default=None, metavar="H", help="Each instance ends itself then; default: 4.")
@click.option("--max-usd", default=None, metavar="USD", help="The most that each type may cost.")
@click.option("--tiny", is_flag=True, help="The tiny form of each benchmark: real engines, seconds.")
@click.option("--fresh", is_flag=True, help="Measure again what an interrupted bench had measured.")
@click.option("--dry-run", is_flag=True, help="Show the plan with its prices; create nothing.")
@click.option("-y", "--yes", is_flag=True, help="Spend without asking.")
@click.option(
    "--cidr", default="", help="The network that may reach the instances; default: your own address."
)
@output_option
@verbose_option
def command(
    *,
    types: tuple[str, ...],
    benchmarks: tuple[str, ...],
    recipe: str,
    cloud: str | None,
    region: str | None,
    spot: bool,
    max_hours: str | None,
    max_usd: str | None,
    tiny: bool,
    fresh: bool,
    dry_run: bool,
    yes: bool,
    cidr: str,
    output: str,
    verbose: bool,
) -> None:
    """Run the benchmarks that fit on every TYPE at once, and print throughput and cost side by side.

    What does not fit a type (no GPU, no AVX512_BF16) is left out, and said. Each instance is terminated as
    soon as it is done. A type that cannot be had does not stop the others. A bench that was cut off, or that
    lacks something, is taken up again by the same command: what is measured is not repeated.
    """
    from pathlib import Path

    from dlcloud.bench.matrix import matrix_of_benchmarks, matrix_of_recipe
    from dlcloud.cli.bench_flow import Bench
    from dlcloud.cli.context import Context
    from dlcloud.cli.lifecycle import parse_network
    from dlcloud.core.errors import RecipeError
    from dlcloud.core.recipe import read_recipe
    from dlcloud.resources.texts import recipe_text

    if recipe and benchmarks:
        raise RecipeError("--recipe brings its own workload", "leave --benchmark out")
    if not recipe and not types:
        raise RecipeError(
            "which instance types?", "dlcloud bench --instance c7i.xlarge --instance g4dn.xlarge"
        )
    options = {
        "cloud": cloud,
        "region": region,
        "instances": {"market": "spot" if spot else None},
        "budget": {"max_hours": max_hours, "max_usd": max_usd},
    }
    options = {key: value for key, value in options.items() if value is not None}
    folder = Path()
    if recipe:
        text, path = recipe_text(recipe)
        folder = path.absolute().parent if path else folder
        order = matrix_of_recipe(types, read_recipe(text, str(path or recipe)), options, tiny=tiny)
    else:
        order = matrix_of_benchmarks(types, benchmarks, options, tiny=tiny)
    with Context("bench", verbose=verbose) as context:
        flow = Bench(
            context=context,
            order=order,
            folder=folder,
            network=parse_network(cidr),
            output=output,
            fresh=fresh,
        )
        plans = flow.plan()
        if dry_run:
            flow.show(plans)
        else:
            flow.go(plans, yes=yes)
