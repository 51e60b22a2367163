"""What `dlcloud local` prints."""

import click

from dlcloud.core.errors import LocalCloudError
from dlcloud.local.site import LocalEndpoint
from dlcloud.report.table import Cell, Format, Report, Section, render


def print_endpoint(endpoint: LocalEndpoint, output: str) -> None:
    """Print where the local EC2 answers, and how another program is pointed there."""
    record: dict[str, Cell] = {"url": endpoint.url, "pid": endpoint.pid, "started_at": endpoint.started_at}
    usage = f"any EC2 client can use it: aws --endpoint-url {endpoint.url} ec2 describe-instances"
    rows = [(endpoint.url, str(endpoint.pid or ""))]
    section = Section(heading="", titles=("endpoint", "pid"), rows=rows, notes=[usage])
    click.echo(
        render(Report(command="local", records=[record], sections=[section], empty=""), Format(output))
    )


def print_status(endpoint: LocalEndpoint | None, output: str) -> None:
    """Print the endpoint with everything the daemon tells.

    Raises:
        LocalCloudError: It does not run.
    """
    if endpoint is None:
        raise LocalCloudError("the local EC2 is not running", "dlcloud local start")
    told = endpoint.control.status()
    instances = [
        {key: each.get(key) for key in ("instance_id", "instance_type", "state", "address", "ssh_port")}
        for each in told.get("instances", [])
    ]
    rows = [[str(value) for value in each.values()] for each in instances]
    heading = f"{endpoint.url}, pid {endpoint.pid or told.get('pid')}"
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
        extra={"url": endpoint.url, "pid": endpoint.pid, "started_at": endpoint.started_at, "status": told},
    )
    click.echo(render(report, Format(output)))


def print_message(command: str, message: str, output: str) -> None:
    """Print what was done."""
    section = Section(heading="", titles=("done",), rows=[(message,)])
    report = Report(command=f"local {command}", records=[{"done": message}], sections=[section], empty="")
    click.echo(message if output == Format.TABLE else render(report, Format(output)))
