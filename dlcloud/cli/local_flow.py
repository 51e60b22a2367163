"""The output of `dlcloud local`."""

import shlex

import click

from dlcloud.core.errors import LocalCloudError
from dlcloud.local.site import LocalEndpoint
from dlcloud.report.table import Cell, Format, Report, Section, render


def print_endpoint(endpoint: LocalEndpoint, output: str) -> None:
    """Print the address of the local EC2, and how other clients use it."""
    record: dict[str, Cell] = {"url": endpoint.url, "pid": endpoint.pid, "started_at": endpoint.started_at}
    rows = [(endpoint.url, str(endpoint.pid or ""))]
    section = Section(heading="", titles=("endpoint", "pid"), rows=rows)
    extra = {"environment": endpoint.environment()}
    report = Report(command="local", records=[record], sections=[section], empty="", extra=extra)
    click.echo(render(report, Format(output)))
    _print_exports(endpoint, output)


def print_status(endpoint: LocalEndpoint | None, output: str) -> None:
    """Print the endpoint and the status of the daemon.

    Raises:
        LocalCloudError: It does not run.
    """
    if endpoint is None:
        raise LocalCloudError("the local EC2 is not running", "dlcloud local start")
    status = endpoint.control.status()
    fields = {"instance_id": "instance_id", "instance_type": "instance_type", "state": "state"}
    fields |= {"address": "host", "ssh_port": "ssh_port"}
    instances = [
        {name: instance.get(key) for name, key in fields.items()} for instance in status.get("instances", [])
    ]
    rows = [[str(value) for value in instance.values()] for instance in instances]
    heading = f"{endpoint.url}, pid {endpoint.pid or status.get('pid')}"
    section = Section(
        heading=heading,
        titles=("instance", "type", "state", "address", "port"),
        rows=rows,
    )
    report = Report(
        command="local",
        records=instances,
        sections=[section] if rows else [],
        empty=f"{heading}: no instances",
        extra={
            "url": endpoint.url,
            "pid": endpoint.pid,
            "started_at": endpoint.started_at,
            "status": status,
            "environment": endpoint.environment(),
        },
    )
    click.echo(render(report, Format(output)))
    _print_exports(endpoint, output)


def _print_exports(endpoint: LocalEndpoint, output: str) -> None:
    """Print the lines that let any AWS client of a shell use the local EC2."""
    environment = endpoint.environment()
    if output == Format.TABLE and environment:
        click.echo("\nfor other clients, such as aws ec2 describe-instances:")
        for name, value in environment.items():
            click.echo(f"export {name}={shlex.quote(value)}")


def print_message(command: str, message: str, output: str) -> None:
    section = Section(heading="", titles=("done",), rows=[(message,)])
    report = Report(command=f"local {command}", records=[{"done": message}], sections=[section], empty="")
    click.echo(message if output == Format.TABLE else render(report, Format(output)))
