"""`dlcloud instances`: what there is, what it can do, what it costs."""

import click

from dlcloud.cli.options import output_option, verbose_option


@click.command("instances")
@click.argument("types", nargs=-1)
@click.option(
    "--gpu", default="", help="With this GPU (T4, A10G, V100, ...); `any` for any, `none` for none."
)
@click.option(
    "--cpu-flag", "cpu_flags", multiple=True, help="With this in its instruction set: avx512_vnni, amx."
)
@click.option("--max-usd", type=float, default=None, help="At most so much an hour, on demand.")
@click.option("--region", default="us-east-1", show_default=True, help="Whose prices.")
@click.option("--live", is_flag=True, help="Ask AWS for prices, spot too, instead of the bundled table.")
@click.option(
    "--cloud", type=click.Choice(["aws", "local"]), default="aws", show_default=True, help="Whom --live asks."
)
@click.option("--retired", is_flag=True, help="List retired types, too; one that is named is always shown.")
@output_option
@verbose_option
def command(
    *,
    types: tuple[str, ...],
    gpu: str,
    cpu_flags: tuple[str, ...],
    max_usd: float | None,
    region: str,
    live: bool,
    cloud: str,
    retired: bool,
    output: str,
    verbose: bool,
) -> None:
    """List instance types, the cheapest TFLOPS first; with TYPES, only those (c7i, p3.2xlarge).

    TFLOPS per USD is the peak of the GPUs' tensor cores, else FP32, over the on-demand price: a first
    look, which `dlcloud cost-report` replaces with what was measured.
    """
    from dlcloud.cli.context import Context
    from dlcloud.cli.instances_flow import Wish, list_instances

    wish = Wish(types=types, gpu=gpu, cpu_flags=cpu_flags, max_usd=max_usd, retired=retired)
    with Context("instances", verbose=verbose) as context:
        list_instances(context, wish, region=region, live=cloud if live else "", output=output)
