"""`dlcloud instances`: hardware and prices of instance types."""

import click

from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import Number, collect_options, output_option, verbose_option
from dlcloud.model.cluster import DEFAULT_REGION


@click.command("instances")
@click.argument("types", nargs=-1)
@click.option(
    "--gpu", default="", help="With this GPU (T4, A10G, V100, ...); `any` for any, `none` for none."
)
@click.option(
    "--cpu-flag", "cpu_flags", multiple=True, help="With this in its instruction set: avx512_vnni, amx."
)
@click.option("--max-usd", type=Number(0), default=None, help="At most so much an hour, on demand.")
@click.option("--region", default=DEFAULT_REGION, show_default=True, help="Whose prices.")
@click.option(
    "--live",
    is_flag=True,
    help="Ask AWS for prices, spot too, and for the types that the bundled table lacks.",
)
@click.option(
    "--cloud", type=click.Choice(["aws", "local"]), default="aws", show_default=True, help="Whom --live asks."
)
@click.option("--retired", is_flag=True, help="List retired types, too; one that is named is always shown.")
@output_option
@verbose_option
@collect_options(
    "conditions", "dlcloud.app.account.instances:Filter", ("types", "gpu", "cpu_flags", "max_usd", "retired")
)
def command(*, conditions: object, region: str, live: bool, cloud: str, output: str, verbose: bool) -> None:
    """List instance types, the cheapest TFLOPS first; with TYPES, only those (c7i, p3.2xlarge).

    TFLOPS per USD is the peak of the GPUs' tensor cores, else FP32, over the on-demand price: a first
    look, which `dlcloud cost-report` replaces with what was measured.
    """
    invoke(
        "dlcloud.app.account.instances:run",
        "instances",
        verbose=verbose,
        conditions=conditions,
        region=region,
        live=live,
        cloud=cloud,
        output=output,
    )
