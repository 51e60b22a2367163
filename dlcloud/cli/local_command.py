"""`dlcloud local`: the local EC2, and decisions of AWS made by hand."""

import click

from dlcloud.cli.options import output_option, verbose_option


@click.group("local")
def command() -> None:
    """Rehearse on this machine: start, look at, disturb and stop the local EC2."""


@command.command("start")
@output_option
@verbose_option
def start(*, output: str, verbose: bool) -> None:
    """Start the local EC2 unless it runs; `up` of a recipe with `cloud: local` does so by itself."""
    from dlcloud.cli.context import Context
    from dlcloud.cli.local_flow import print_endpoint

    with Context("local", verbose=verbose) as context:
        print_endpoint(context.local_site.start(), output)


@command.command("status")
@output_option
@verbose_option
def status(*, output: str, verbose: bool) -> None:
    """Print the endpoint and the instances of the local EC2."""
    from dlcloud.cli.context import Context
    from dlcloud.cli.local_flow import print_status

    with Context("local", verbose=verbose) as context:
        print_status(context.local_site.find(), output)


@command.command("stop")
@output_option
@verbose_option
def stop(*, output: str, verbose: bool) -> None:
    """Stop the local EC2 with all its instances and their processes."""
    from dlcloud.cli.context import Context
    from dlcloud.cli.local_flow import print_message

    with Context("local", verbose=verbose) as context:
        stopped = context.local_site.stop()
        print_message(
            "stop", "the local EC2 is stopped" if stopped else "the local EC2 was not running", output
        )


@command.command("interrupt")
@click.argument("instance")
@click.option("--grace", default=120.0, show_default=True, help="Seconds from the notice to the end.")
@click.option("--rebalance", is_flag=True, help="Only recommend to rebalance; end nothing.")
@output_option
@verbose_option
def interrupt(*, instance: str, grace: float, rebalance: bool, output: str, verbose: bool) -> None:
    """Give INSTANCE a spot interruption notice, then end it, as EC2 does."""
    from dlcloud.cli.context import Context
    from dlcloud.cli.local_flow import print_message

    with Context("local", verbose=verbose) as context:
        context.local_endpoint().control.interrupt(instance, grace, rebalance=rebalance)
        notice = f"its interruption notice, and ends in {grace:g} s"
        notice = "a rebalance recommendation" if rebalance else notice
        print_message("interrupt", f"{instance} has {notice}", output)


@command.command("capacity")
@click.argument("instance_type")
@click.argument("count", type=int, required=False)
@click.option("--zone", default=None, help="Only in this Availability Zone.")
@output_option
@verbose_option
def capacity(*, instance_type: str, count: int | None, zone: str | None, output: str, verbose: bool) -> None:
    """Limit the instances of INSTANCE_TYPE to COUNT; without COUNT, remove the limit."""
    from dlcloud.cli.context import Context
    from dlcloud.cli.local_flow import print_message

    with Context("local", verbose=verbose) as context:
        context.local_endpoint().control.set_capacity(instance_type, count, zone)
        limit = "unlimited" if count is None else str(count)
        place = f" in {zone}" if zone else ""
        print_message("capacity", f"capacity of {instance_type}{place}: {limit}", output)


@command.command("quota")
@click.argument("instance_type")
@click.argument("vcpus", type=click.IntRange(min=0), required=False)
@click.option("--spot", is_flag=True, help="The quota of spot instances.")
@output_option
@verbose_option
def quota(*, instance_type: str, vcpus: int | None, spot: bool, output: str, verbose: bool) -> None:
    """Limit the running vCPUs of INSTANCE_TYPE's family to VCPUS; without VCPUS, remove the limit."""
    from dlcloud.cli.context import Context
    from dlcloud.cli.local_flow import print_message

    with Context("local", verbose=verbose) as context:
        context.local_endpoint().control.set_quota(instance_type, vcpus, spot=spot)
        limit = "unlimited" if vcpus is None else f"{vcpus} vCPUs"
        market = "spot" if spot else "on-demand"
        print_message("quota", f"quota of {instance_type} and its family, {market}: {limit}", output)
