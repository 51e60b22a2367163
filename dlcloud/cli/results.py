"""The commands about what was measured: `cost-report`, `compare`, `predict`, `training`, `export`, `import`.

The use cases are in `dlcloud/app/results`. They read the store; only --live and --billed ask AWS.
"""

from typing import TYPE_CHECKING

import click

from dlcloud.cli.complete import complete_clusters
from dlcloud.cli.options import (
    description_options,
    job_options,
    output_option,
    plain_output_option,
    region_option,
    selection_options,
    verbose_option,
)

if TYPE_CHECKING:
    from dlcloud.analysis.user_job import UserJob
    from dlcloud.prediction.measured_types import Reference
    from dlcloud.store.measurements import Selection

commands = click.Group()


@commands.command("cost-report")
@click.argument("names", metavar="[RUNS]...", nargs=-1)
@click.option(
    "--by",
    type=click.Choice(["cost", "throughput", "latency"]),
    default="cost",
    show_default=True,
    help="Order of the table, and measure of the best.",
)
@click.option(
    "--market",
    type=click.Choice(["on-demand", "spot"]),
    default="on-demand",
    show_default=True,
    help="Market used by `--by cost`.",
)
@click.option(
    "--group",
    type=click.Choice(["case", "benchmark", "type", "cluster", "run"]),
    default=None,
    help="Group tables by this field (default: automatic).",
)
@selection_options
@job_options
@click.option("--latest/--all", "newest", default=True, help="The newest result of each kind, or all.")
@click.option(
    "--details", is_flag=True, help="Include latency, size, memory, agreement, every price and bill."
)
@click.option("--wide", is_flag=True, help="Print everything in one table, wider than a terminal.")
@click.option("--spending", is_flag=True, help="Print what all clusters cost, by cluster and by day.")
@click.option("--billed", is_flag=True, help="Include what AWS billed (Cost Explorer: 0.01 USD a request).")
@click.option(
    "--html", default="", metavar="FILE", help="Write a page with charts to this file; it opens offline."
)
@click.option(
    "--plot", default="", metavar="FILE", help="Write the charts to this file, .png or .svg, for a paper."
)
@click.option(
    "--timeline",
    multiple=True,
    metavar="FILE",
    help="Draw a trainer's records (JSON lines) of this file, too.",
)
@output_option
@verbose_option
def cost_report(
    *,
    selection: "Selection",
    by: str,
    market: str,
    group: str | None,
    job: "UserJob | None",
    summary: bool,
    newest: bool,
    details: bool,
    wide: bool,
    spending: bool,
    billed: bool,
    html: str,
    plot: str,
    timeline: tuple[str, ...],
    output: str,
    verbose: bool,
) -> None:
    """Print throughput, speed-up and cost of what was measured, or of RUNS (run or cluster names).

    What instances cost so far is shown by --spending.

    The newest result of each instance type, benchmark, case and setting is shown, the cheapest first. A
    winner is named only if the 95 % interval of its ratio to each other setting excludes 1. Rehearsals
    are marked with *, results that did not settle with ~. The answer comes last: the cheapest and the
    fastest of each case, or the command that would settle it.
    """
    from dlcloud.analysis.ranking import By, Group
    from dlcloud.app.context import Context
    from dlcloud.app.results.cost_report import run
    from dlcloud.model.instance import Market
    from dlcloud.report.cost_tables import View

    view = View(
        by=By(by),
        market=Market(market),
        group=Group(group) if group else None,
        job=job,
        summary=summary,
        newest=newest,
        details=details,
        wide=wide,
    )
    with Context("cost-report", verbose=verbose) as context:
        run(
            context,
            selection=selection,
            view=view,
            html=html,
            plot=plot,
            timeline=timeline,
            billed=billed,
            spending=spending,
            output=output,
        )


@commands.command("compare")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@output_option
@verbose_option
def compare(*, first: str, second: str, output: str, verbose: bool) -> None:
    """Show how much faster B is than A, with a 95 % interval and a verdict, and list other differences.

    A and B are each a run, a cluster, an instance type or family, a setting, a benchmark, a case or a
    day, or several of them with commas: `c5.large,int8`. If a word may mean several things, say which:
    `type:c5`, `setting:int8`, `run:…`, `cluster:…`, `benchmark:…`, `case:…`, `date:2026-09-01`. The
    newest results of each side are compared.

    \b
    dlcloud compare fp32 int8
    dlcloud compare c5.large c7i.large
    dlcloud compare 2026-09-01 2026-10-01
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    from dlcloud.app.context import Context
    from dlcloud.app.results.compare import run

    with Context("compare", verbose=verbose) as context:
        run(context, first=first, second=second, output=output)


@commands.command("predict")
@click.argument("names", metavar="[RUNS]...", nargs=-1)
@selection_options
@region_option
@click.option(
    "--market",
    type=click.Choice(["on-demand", "spot"]),
    default="on-demand",
    show_default=True,
    help="Market used to rank instance types.",
)
@click.option("--live", is_flag=True, help="Ask AWS for prices, spot too.")
@click.option("--all", "every", is_flag=True, help="Print every type, not only the cheapest.")
@click.option(
    "--model",
    default="",
    metavar="NAME|N|FILE",
    help="Language model that was not measured: Llama-3.1-8B, 8B, 235B-A22B, or its config.json.",
)
@click.option(
    "--precision",
    type=click.Choice(["bf16", "fp8", "int4"]),
    default="bf16",
    show_default=True,
    help="Precision of --model.",
)
@click.option(
    "--ttft", default="1s", show_default=True, metavar="TIME", help="First token of --model within."
)
@click.option(
    "--tpot", default="50ms", show_default=True, metavar="TIME", help="Next tokens of --model within."
)
@description_options
@output_option
@verbose_option
def predict(
    *,
    model: str,
    precision: str,
    ttft: str,
    tpot: str,
    tokens: str,
    selection: "Selection",
    region: str,
    market: str,
    live: bool,
    every: bool,
    reference: "Reference | None",
    output: str,
    verbose: bool,
) -> None:
    """Predict throughput and USD per million items of what was measured, on all types of a region.

    Each job of the stored results, or of RUNS, is predicted from the types on which it ran, with 90 %
    intervals. Three types of different size and processor tell most. --parameters, and for language
    models --tokens and --generates, improve the predictions; a job that counts tokens is taken for a
    language model. From types with GPUs others with as many GPUs are predicted, roughly. Jobs on several
    instances, and rehearsals, are not predicted.

    With --model, nothing needs to be measured, and no account is needed. It prints USD per million tokens
    of a language model, by published measurements. Types that do not answer within --ttft and --tpot are
    left out. --tokens 1000/200 are those of prompts and answers.
    """
    from dlcloud.app.context import Context
    from dlcloud.app.results.predict import run
    from dlcloud.app.results.predict_model import run_model
    from dlcloud.model.instance import Market
    from dlcloud.prediction.serving import read_demand
    from dlcloud.resources.type_table import find_model

    demand = read_demand(find_model(model), precision, ttft, tpot, tokens) if model else None
    with Context("predict", verbose=verbose) as context:
        if demand is not None:
            run_model(
                context,
                demand=demand,
                region=region,
                market=Market(market),
                live=live,
                every=every,
                output=output,
            )
            return
        run(
            context,
            selection=selection,
            region=region,
            market=Market(market),
            live=live,
            every=every,
            reference=reference,
            output=output,
        )


@commands.command("training")
@click.argument("name", required=False, default="", shell_complete=complete_clusters)
@output_option
@verbose_option
def training(*, name: str, output: str, verbose: bool) -> int | None:
    """Show the elastic training of cluster NAME (default: the newest).

    It lists steps, the number of workers over time with the pause of each change, what happened and why,
    and what each instance cost next to a fixed on-demand cluster.
    """
    from dlcloud.app.context import Context
    from dlcloud.app.results.training import run

    with Context("training", verbose=verbose) as context:
        return run(context, name=name, output=output)


@commands.command("export")
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
    help="Default: from the file extension.",
)
@click.option("--run", "names", multiple=True, metavar="NAME", help="Only this run or cluster.")
@selection_options
@click.option("--samples", is_flag=True, help="Include the raw samples (JSON lines).")
@click.option("--commands", is_flag=True, help="Include your own programs' command lines and variables.")
@plain_output_option("Format of what is printed about it.")
@verbose_option
def export(
    *,
    file: str,
    scheduler: str | None,
    form: str | None,
    selection: "Selection",
    samples: bool,
    commands: bool,
    output: str,
    verbose: bool,
) -> None:
    """Write what was measured to FILE (.jsonl, .csv, .parquet; - for stdout).

    JSON lines hold whole runs for `dlcloud import`; `dlcloud schema results` documents them. CSV and
    Parquet hold a row for each result.

    The URL of an MLflow server (http://HOST:5000) receives the runs that it does not have.

    With --as batch, print RECIPE (of a command) as the input of `aws batch
    register-job-definition --cli-input-json`; --setting names one of its settings.
    """
    from dlcloud.app.context import Context
    from dlcloud.app.results.export import print_job_definition, run

    if scheduler is not None:
        print_job_definition(file, selection.settings)
        return
    with Context("export", verbose=verbose) as context:
        run(
            context,
            file=file,
            form=form,
            selection=selection,
            samples=samples,
            commands=commands,
            output=output,
        )


@commands.command("import")
@click.argument("files", nargs=-1, required=True)
@output_option
@verbose_option
def import_(*, files: tuple[str, ...], output: str, verbose: bool) -> None:
    """Merge FILES (JSON lines of `dlcloud export`; - for stdin) into this home.

    A run that is stored already is skipped. If any line is at fault, nothing is imported.
    """
    from dlcloud.app.context import Context
    from dlcloud.app.results.export import import_files

    with Context("import", verbose=verbose) as context:
        import_files(context, files=files, output=output)
