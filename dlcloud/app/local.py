"""`dlcloud local`: the local EC2, and decisions of AWS made by hand."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import say
from dlcloud.local.site import LocalEndpoint
from dlcloud.model.errors import RecipeError
from dlcloud.report.table import Cell, Format, Report, Section, render
from dlcloud.scheduling.simulation.traces import UNKNOWN_MEANING_HINT, Meaning, obtainable_counts


def start(context: Context, *, output: str) -> None:
    """Start the local EC2 unless it runs; `up` of a recipe with `cloud: local` does so by itself."""
    endpoint = context.local_site.start()
    record: dict[str, Cell] = {"url": endpoint.url, "pid": endpoint.pid, "started_at": endpoint.started_at}
    section = Section(heading="", titles=("endpoint", "pid"), rows=[(endpoint.url, str(endpoint.pid or ""))])
    _print(Report(command="local", records=[record], sections=[section], empty=""), endpoint, output)
    _say_isolation(endpoint.control.status() if endpoint.control.token else {}, output)


def status(context: Context, *, output: str) -> None:
    """Print the endpoint and the instances of the local EC2."""
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
    _say_isolation(state, output)


def _say_isolation(state: Mapping[str, Any], output: str) -> None:
    """Print how far instances are kept from this machine, and why not further."""
    if output == Format.TABLE and "isolation" in state:
        reason = f" ({state['isolation']['reason']})" if state["isolation"]["reason"] else ""
        say(f"\nisolation of instances: {state['isolation']['level']}{reason}")


def stop(context: Context, *, output: str) -> None:
    """Stop the local EC2 with all its instances and their processes."""
    stopped = context.local_site.stop()
    _print_done("stop", "the local EC2 is stopped" if stopped else "the local EC2 was not running", output)


def interrupt(context: Context, *, instance: str, grace: float, rebalance: bool, output: str) -> None:
    """Give INSTANCE a spot interruption notice, then end it, as EC2 does."""
    context.local_endpoint().control.interrupt(instance, grace, rebalance=rebalance)
    notice = f"its interruption notice, and ends in {grace:g} s"
    notice = "a rebalance recommendation" if rebalance else notice
    _print_done("interrupt", f"{instance} has {notice}", output)


def capacity(
    context: Context,
    *,
    instance_type: str,
    count: int | None,
    zone: str | None,
    traces: Sequence[str] = (),
    values: str | None = None,
    speed: float,
    grace: float | None,
    output: str,
) -> None:
    """Limit the instances of a type to `count`, or let its spot capacity follow traces.

    Args:
        context: The collaborators.
        instance_type: The type.
        count: The limit; None removes it, and ends the traces.
        zone: The limit of this Availability Zone only.
        traces: `[ZONE=]FILE` each; spot capacity follows them.
        values: What 1 means in traces that do not say it: `obtainable` or `preempted`.
        speed: Seconds of a trace in a second.
        grace: Seconds from an interruption notice to the termination; by default 120 of the trace.
        output: The format.
    """
    control = context.local_endpoint().control
    if traces:
        if count is not None or zone is not None:
            raise RecipeError("--trace takes no COUNT and no --zone; write --trace ZONE=FILE")
        contents = [_read_trace(text, instance_type, values) for text in traces]
        grace_s = 120.0 / max(speed, 1.0) if grace is None else grace
        control.play_traces(contents, speed=speed, grace_s=grace_s)
        _print_done("capacity", f"spot capacity of {instance_type} follows {', '.join(traces)}", output)
        return
    control.set_capacity(instance_type, count, zone)
    if count is None:
        control.play_traces([], speed=0.0)
    limit = "unlimited" if count is None else str(count)
    place = f" in {zone}" if zone else ""
    _print_done("capacity", f"capacity of {instance_type}{place}: {limit}", output)


def account_plan(context: Context, *, plan: str, output: str) -> None:
    """Put the local account on AWS's Free plan, or back on the Paid one."""
    context.local_endpoint().control.set_account_plan(free=plan == "free")
    _print_done("account-plan", f"the local account is on the {plan.capitalize()} plan", output)


def quota(context: Context, *, instance_type: str, vcpus: int | None, spot: bool, output: str) -> None:
    """Limit the running vCPUs of INSTANCE_TYPE's family to VCPUS; without VCPUS, remove the limit."""
    context.local_endpoint().control.set_quota(instance_type, vcpus, spot=spot)
    limit = "unlimited" if vcpus is None else f"{vcpus} vCPUs"
    market = "spot" if spot else "on-demand"
    _print_done("quota", f"quota of {instance_type} and its family, {market}: {limit}", output)


def _read_trace(text: str, instance_type: str, meaning: str | None) -> dict[str, object]:
    """Return the trace in `[ZONE=]FILE`, with its pool."""
    zone, _, name = text.rpartition("=")
    try:
        values = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(f"--trace {name}: {error}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"--trace {name}: it holds no JSON object")
    try:
        counts = obtainable_counts(values, Meaning(meaning) if meaning else None)
    except ValueError as error:
        raise RecipeError(f"--trace {name}: {error}", UNKNOWN_MEANING_HINT) from error
    return {**values, "data": counts, "instance_type": instance_type, "zone": zone or None}


def _print(report: Report, endpoint: LocalEndpoint, output: str) -> None:
    """Print a report, and the lines that let any AWS client of a shell use the local EC2."""
    environment = endpoint.environment()
    say(render(replace(report, extra={**report.extra, "environment": environment}), Format(output)))
    if output == Format.TABLE and environment:
        say("\nfor other clients, such as aws ec2 describe-instances:")
        for name, value in environment.items():
            say(f"export {name}={shlex.quote(value)}")


def _print_done(action: str, message: str, output: str) -> None:
    section = Section(heading="", titles=("done",), rows=[(message,)])
    report = Report(command=f"local {action}", records=[{"done": message}], sections=[section], empty="")
    say(message if output == Format.TABLE else render(report, Format(output)))
