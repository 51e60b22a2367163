"""`dlcloud local`: start, show, disturb and stop the local EC2; `dlcloud/app/local.py` has the use cases."""

import click

from dlcloud.cli.options import Number, output_option, values_option, verbose_option

commands = click.Group()


@commands.group("local")
def local() -> None:
    """Rehearse on this machine: start, look at, disturb and stop the local EC2."""


@local.command("start")
@output_option
@verbose_option
def start(*, output: str, verbose: bool) -> None:
    """Start the local EC2 unless it runs; `up` of a recipe with `cloud: local` does so by itself."""
    from dlcloud.app import local as use_cases
    from dlcloud.app.context import Context

    with Context("local", verbose=verbose) as context:
        use_cases.start(context, output=output)


@local.command("status")
@output_option
@verbose_option
def status(*, output: str, verbose: bool) -> None:
    """Print the endpoint and the instances of the local EC2."""
    from dlcloud.app import local as use_cases
    from dlcloud.app.context import Context

    with Context("local", verbose=verbose) as context:
        use_cases.status(context, output=output)


@local.command("stop")
@output_option
@verbose_option
def stop(*, output: str, verbose: bool) -> None:
    """Stop the local EC2 with all its instances and their processes."""
    from dlcloud.app import local as use_cases
    from dlcloud.app.context import Context

    with Context("local", verbose=verbose) as context:
        use_cases.stop(context, output=output)


@local.command("interrupt")
@click.argument("instance")
@click.option(
    "--grace",
    type=Number(0),
    default=120.0,
    show_default=True,
    help="Seconds from the notice to the termination.",
)
@click.option("--rebalance", is_flag=True, help="Only recommend to rebalance; terminate nothing.")
@output_option
@verbose_option
def interrupt(*, instance: str, grace: float, rebalance: bool, output: str, verbose: bool) -> None:
    """Give INSTANCE a spot interruption notice, then terminate it, as EC2 does."""
    from dlcloud.app import local as use_cases
    from dlcloud.app.context import Context

    with Context("local", verbose=verbose) as context:
        use_cases.interrupt(context, instance=instance, grace=grace, rebalance=rebalance, output=output)


@local.command("capacity")
@click.argument("instance_type")
@click.argument("count", type=int, required=False)
@click.option("--zone", default=None, metavar="ZONE", help="Only in this Availability Zone, or Region.")
@click.option(
    "--trace",
    "traces",
    multiple=True,
    metavar="[ZONE=]FILE",
    help="Let spot capacity follow this trace, of one zone or of all together.",
)
@values_option
@click.option("--speed", type=Number(0), default=1.0, help="Seconds of the trace in a second.")
@click.option(
    "--grace",
    type=Number(0),
    default=None,
    help="Seconds from an interruption notice to the end; by default 120 of the trace.",
)
@output_option
@verbose_option
def capacity(
    *,
    instance_type: str,
    count: int | None,
    zone: str | None,
    traces: tuple[str, ...],
    values: str | None,
    speed: float,
    grace: float | None,
    output: str,
    verbose: bool,
) -> None:
    """Limit the instances of INSTANCE_TYPE to COUNT; without COUNT, remove the limit, and end the traces.

    With --trace, spot instances beyond the obtainable number receive an interruption notice and
    terminate, and requests beyond it are refused. A trace is JSON: {"metadata": {"gap_seconds": 600},
    "data": [3, 2, ...], "prices": [0.97, ...]}. The numbers are obtainable instances. If they are zeros
    and ones only, "meaning": "obtainable" in the metadata, or --values, must say so.
    """
    from dlcloud.app import local as use_cases
    from dlcloud.app.context import Context

    with Context("local", verbose=verbose) as context:
        use_cases.capacity(
            context,
            instance_type=instance_type,
            count=count,
            zone=zone,
            traces=traces,
            values=values,
            speed=speed,
            grace=grace,
            output=output,
        )


@local.command("account-plan")
@click.argument("plan", type=click.Choice(["free", "paid"]))
@output_option
@verbose_option
def account_plan(*, plan: str, output: str, verbose: bool) -> None:
    """Put the local account on AWS's Free plan, on which EC2 launches a few types only, or back on Paid."""
    from dlcloud.app import local as use_cases
    from dlcloud.app.context import Context

    with Context("local", verbose=verbose) as context:
        use_cases.account_plan(context, plan=plan, output=output)


@local.command("quota")
@click.argument("instance_type")
@click.argument("vcpus", type=click.IntRange(min=0), required=False)
@click.option("--spot", is_flag=True, help="The quota of spot instances.")
@output_option
@verbose_option
def quota(*, instance_type: str, vcpus: int | None, spot: bool, output: str, verbose: bool) -> None:
    """Limit the running vCPUs of INSTANCE_TYPE's family to VCPUS; without VCPUS, remove the limit."""
    from dlcloud.app import local as use_cases
    from dlcloud.app.context import Context

    with Context("local", verbose=verbose) as context:
        use_cases.quota(context, instance_type=instance_type, vcpus=vcpus, spot=spot, output=output)
