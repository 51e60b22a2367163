"""`dlcloud local`: the local EC2, and decisions of AWS made by hand."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlcloud.cli.options import Number, output_option, verbose_option
from dlcloud.report.table import Cell, Format, Report, Section, render

if TYPE_CHECKING:
    from dlcloud.local.site import LocalEndpoint


@click.group("local", short_help="Start, look at, disturb, stop the local EC2.")
def command() -> None:
    """Rehearse on this machine: start, look at, disturb and stop the local EC2."""


@command.command("start")
@output_option
@verbose_option
def start(*, output: str, verbose: bool) -> None:
    """Start the local EC2 unless it runs; `up` of a recipe with `cloud: local` does so by itself."""
    from dlcloud.cli.context import Context

    with Context("local", verbose=verbose) as context:
        endpoint = context.local_site.start()
    record: dict[str, Cell] = {"url": endpoint.url, "pid": endpoint.pid, "started_at": endpoint.started_at}
    section = Section(heading="", titles=("endpoint", "pid"), rows=[(endpoint.url, str(endpoint.pid or ""))])
    _print(Report(command="local", records=[record], sections=[section], empty=""), endpoint, output)


@command.command("status")
@output_option
@verbose_option
def status(*, output: str, verbose: bool) -> None:
    """Print the endpoint and the instances of the local EC2."""
    from dlcloud.cli.context import Context

    with Context("local", verbose=verbose) as context:
        endpoint = context.local_endpoint()
        state = endpoint.control.status()
    fields = {"instance_id": "instance_id", "instance_type": "instance_type", "state": "state"}
    fields |= {"address": "host", "ssh_port": "ssh_port"}
    instances = [{name: instance.get(key) for name, key in fields.items()} for instance in state["instances"]]
    heading = f"{endpoint.url}, pid {endpoint.pid or state.get('pid')}"
    section = Section(
        heading=heading,
        titles=("instance", "type", "state", "address", "port"),
        rows=[[str(value) for value in instance.values()] for instance in instances],
    )
    report = Report(
        command="local",
        records=instances,
        sections=[section] if instances else [],
        empty=f"{heading}: no instances",
        extra={"url": endpoint.url, "pid": endpoint.pid, "started_at": endpoint.started_at, "status": state},
    )
    _print(report, endpoint, output)
    if output == Format.TABLE and "isolation" in state:
        reason = f" ({state['isolation']['reason']})" if state["isolation"]["reason"] else ""
        click.echo(f"\nisolation of instances: {state['isolation']['level']}{reason}")


@command.command("stop")
@output_option
@verbose_option
def stop(*, output: str, verbose: bool) -> None:
    """Stop the local EC2 with all its instances and their processes."""
    from dlcloud.cli.context import Context

    with Context("local", verbose=verbose) as context:
        stopped = context.local_site.stop()
    _print_done("stop", "the local EC2 is stopped" if stopped else "the local EC2 was not running", output)


@command.command("interrupt")
@click.argument("instance")
@click.option(
    "--grace", type=Number(0), default=120.0, show_default=True, help="Seconds from the notice to the end."
)
@click.option("--rebalance", is_flag=True, help="Only recommend to rebalance; end nothing.")
@output_option
@verbose_option
def interrupt(*, instance: str, grace: float, rebalance: bool, output: str, verbose: bool) -> None:
    """Give INSTANCE a spot interruption notice, then end it, as EC2 does."""
    from dlcloud.cli.context import Context

    with Context("local", verbose=verbose) as context:
        context.local_endpoint().control.interrupt(instance, grace, rebalance=rebalance)
    notice = f"its interruption notice, and ends in {grace:g} s"
    notice = "a rebalance recommendation" if rebalance else notice
    _print_done("interrupt", f"{instance} has {notice}", output)


@command.command("capacity")
@click.argument("instance_type")
@click.argument("count", type=int, required=False)
@click.option("--zone", default=None, help="Only in this Availability Zone.")
@click.option(
    "--trace",
    "traces",
    multiple=True,
    metavar="[ZONE=]FILE",
    help="Let spot capacity follow this trace, of one zone or of all together.",
)
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
    speed: float,
    grace: float | None,
    output: str,
    verbose: bool,
) -> None:
    """Limit the instances of INSTANCE_TYPE to COUNT; without COUNT, remove the limit, and end the traces.

    With --trace, spot instances beyond the obtainable number receive an interruption notice and end, and
    requests beyond it are refused. A trace is JSON: {"metadata": {"gap_seconds": 600}, "data": [3, 2, ...],
    "prices": [0.97, ...]}, the prices in USD an hour, if any.
    """
    from dlcloud.cli.context import Context

    if traces:
        if count is not None or zone is not None:
            raise click.UsageError("--trace takes no COUNT and no --zone; write --trace ZONE=FILE")
        values = [_read_trace(text, instance_type) for text in traces]
        grace_s = 120.0 / max(speed, 1.0) if grace is None else grace
        with Context("local", verbose=verbose) as context:
            context.local_endpoint().control.play_traces(values, speed=speed, grace_s=grace_s)
        _print_done("capacity", f"spot capacity of {instance_type} follows {', '.join(traces)}", output)
        return
    with Context("local", verbose=verbose) as context:
        control = context.local_endpoint().control
        control.set_capacity(instance_type, count, zone)
        if count is None:
            control.play_traces([], speed=0.0)
    limit = "unlimited" if count is None else str(count)
    place = f" in {zone}" if zone else ""
    _print_done("capacity", f"capacity of {instance_type}{place}: {limit}", output)


@command.command("quota")
@click.argument("instance_type")
@click.argument("vcpus", type=click.IntRange(min=0), required=False)
@click.option("--spot", is_flag=True, help="The quota of spot instances.")
@output_option
@verbose_option
def quota(*, instance_type: str, vcpus: int | None, spot: bool, output: str, verbose: bool) -> None:
    """Limit the running vCPUs of INSTANCE_TYPE's family to VCPUS; without VCPUS, remove the limit."""
    from dlcloud.cli.context import Context

    with Context("local", verbose=verbose) as context:
        context.local_endpoint().control.set_quota(instance_type, vcpus, spot=spot)
    limit = "unlimited" if vcpus is None else f"{vcpus} vCPUs"
    market = "spot" if spot else "on-demand"
    _print_done("quota", f"quota of {instance_type} and its family, {market}: {limit}", output)


def _read_trace(text: str, instance_type: str) -> dict[str, object]:
    """Return the trace in `[ZONE=]FILE`, with its pool."""
    zone, _, name = text.rpartition("=")
    try:
        values = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--trace {name}: {error}") from error
    if not isinstance(values, dict):
        raise click.UsageError(f"--trace {name}: it holds no JSON object")
    return {**values, "instance_type": instance_type, "zone": zone or None}


def _print(report: Report, endpoint: "LocalEndpoint", output: str) -> None:
    """Print a report, and the lines that let any AWS client of a shell use the local EC2."""
    environment = endpoint.environment()
    click.echo(render(replace(report, extra={**report.extra, "environment": environment}), Format(output)))
    if output == Format.TABLE and environment:
        click.echo("\nfor other clients, such as aws ec2 describe-instances:")
        for name, value in environment.items():
            click.echo(f"export {name}={shlex.quote(value)}")


def _print_done(action: str, message: str, output: str) -> None:
    section = Section(heading="", titles=("done",), rows=[(message,)])
    report = Report(command=f"local {action}", records=[{"done": message}], sections=[section], empty="")
    click.echo(message if output == Format.TABLE else render(report, Format(output)))
