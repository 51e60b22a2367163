"""`dlcloud export`: results for other homes and for notebooks; recipes for other schedulers."""

from typing import TYPE_CHECKING

import click

from dlcloud.cli.invoke import invoke
from dlcloud.cli.options import collect_options, selection_options, verbose_option

if TYPE_CHECKING:
    pass


@click.command("export")
@click.argument("file", metavar="FILE|RECIPE|URL")
@click.option(
    "--as",
    "scheduler",
    type=click.Choice(["batch"]),
    help="Instead of results, print RECIPE as a job definition of AWS Batch.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "csv", "parquet"]),
    default=None,
    help="By default what FILE ends in.",
)
@click.option("--run", "names", multiple=True, help="Of this run or cluster.")
@selection_options
@click.option("--samples", is_flag=True, help="JSON lines: the raw samples, too.")
@click.option("--commands", is_flag=True, help="Your own programs' command lines and variables, too.")
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", help="Of what it did.")
@verbose_option
@collect_options("options", "dlcloud.app.results.export:ExportOptions")
def command(*, options: object, verbose: bool) -> None:
    """Write what was measured to FILE (.jsonl, .csv, .parquet; - for stdout).

    JSON lines hold whole runs, one a line, for `dlcloud import` in another home; `dlcloud schema results`
    documents them. CSV and Parquet hold a row a result, as `dlcloud cost-report --all -o csv` prints it.

    A URL (http://HOST:5000) is that of an MLflow server, which gets the runs that it does not have.

    With --as batch, print RECIPE, whose workload is a command, as the input of `aws batch
    register-job-definition --cli-input-json`; --setting names one of its settings.
    """
    invoke("dlcloud.app.results.export:run", "export", verbose=verbose, options=options)
