"""`dlcloud cost-report`: what was measured, and what it costs."""

import click

from dlcloud.cli.options import output_option, verbose_option


@click.command("cost-report", short_help="Throughput, speed-up and cost of what was measured.")
@click.argument("runs", nargs=-1)
@click.option("--details", is_flag=True, help="Latency, size, memory and agreement, too.")
@output_option
@verbose_option
def command(*, runs: tuple[str, ...], details: bool, output: str, verbose: bool) -> None:
    """Print throughput, speed-up and cost of all that was measured, or of RUNS (run or cluster names)."""
    from dlcloud.cli.context import Context
    from dlcloud.core.errors import RecipeError
    from dlcloud.report.cost import cost_report, lines_of
    from dlcloud.report.table import Format, render

    with Context("cost-report", verbose=verbose) as context:
        store = context.runs
        chosen = [run for run in store.all() if not runs or {run.run_id, run.cluster_name} & set(runs)]
        missing = set(runs) - {name for run in chosen for name in (run.run_id, run.cluster_name)}
        if missing:
            raise RecipeError(
                f"no run or cluster {', '.join(sorted(missing))} is stored", "dlcloud cost-report"
            )
        lines = lines_of(chosen, store.results(), store.comparisons(), store.hardware())
        click.echo(render(cost_report(lines, details=details), Format(output)))
