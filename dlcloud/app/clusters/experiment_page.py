"""The page of an experiment: its tables and charts in one file that opens offline."""

from dataclasses import replace
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.launch.remote_jobs import log_tail
from dlcloud.model.errors import RecipeError
from dlcloud.report.experiment import ExperimentTable, experiment_charts, experiment_report
from dlcloud.report.page import bundle, page
from dlcloud.report.table import Section
from dlcloud.resources.texts import template
from dlcloud.results.trials import TrialState
from dlcloud.runs.experiment_records import ExperimentRecords

LAST_LINES = 3
"""Of the log of a trial that was given up."""

MOST_FAILURES = 50


def write_page(context: Context, file: str, table: ExperimentTable, records: ExperimentRecords) -> None:
    """Write the page.

    Raises:
        RecipeError: The extra `plot` is not installed, or the file cannot be written.
    """
    report = experiment_report(table)
    failures = _failures(context, table)
    best, *others = report.sections
    sections = [replace(best, leads=1), *others, *([failures] if failures else [])]
    report = replace(report, sections=sections)
    runs = records.runs.of_experiment(records.digest)
    script = bundle(context.paths.make_folder(context.paths.cache))
    subtitle = f"{len(runs)} runs, {context.clock.now():%Y-%m-%d %H:%M} UTC"
    charts = experiment_charts(table, runs)
    text = page(
        template("report.html"), script, report, charts, title=f"dlcloud {table.name}", subtitle=subtitle
    )
    try:
        Path(file).write_text(text, "utf-8")
    except OSError as error:
        raise RecipeError(f"--html {file}: {error.strerror}") from error


def _failures(context: Context, table: ExperimentTable) -> Section | None:
    """Return the last lines of the trials that were given up; None without any."""
    failed = [status for status in table.statuses if status.state is TrialState.FAILED and status.run]
    rows = [
        (
            str(status.trial.number),
            " / ".join(log_tail(context.paths.run_log(status.run.run_id)).splitlines()[-LAST_LINES:]),
        )
        for status in failed[:MOST_FAILURES]
        if status.run is not None
    ]
    if not rows:
        return None
    return Section(heading="the last lines of these trials", titles=("trial", "last lines"), rows=rows)
