"""The charts of `dlcloud cost-report`: as a page, as a picture."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlcloud.cli.context import Context
from dlcloud.cli.exchange_flow import written
from dlcloud.core.errors import RecipeError
from dlcloud.core.events import Notice
from dlcloud.core.instance import Market
from dlcloud.core.result_row import ResultRow
from dlcloud.core.timeline import Timeline, timelines_of
from dlcloud.report.charts import Chart, cost_charts
from dlcloud.report.drawing import bundle, picture
from dlcloud.report.page import page
from dlcloud.report.table import Report
from dlcloud.report.timeline_charts import timeline_charts
from dlcloud.resources.texts import template

PICTURES = (".png", ".svg")


def refuse_bad(plot: str) -> None:
    """Refuse a picture of an unknown kind before anything is read.

    Raises:
        RecipeError: The file ends in neither .png nor .svg.
    """
    if plot and Path(plot).suffix.lower() not in PICTURES:
        raise RecipeError(f"--plot {plot}: which format?", f"end it in {' or '.join(PICTURES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """What to draw and where; empty names draw nothing.

    Args:
        context: The collaborators.
        html: The file of the page.
        plot: The file of the picture.
        timeline: Files of trainers' records, drawn besides those of the runs shown.
        runs: Whose records are looked through for timelines.
    """

    context: Context
    html: str
    plot: str
    timeline: Sequence[str]
    runs: Sequence[str]

    def draw(self, lines: Sequence[ResultRow], report: Report, market: Market) -> None:
        """Write the files.

        Raises:
            RecipeError: What draws is not installed, or a file cannot be read or written.
        """
        charts, timelines = cost_charts(lines, market), self._timelines()
        for place, timeline in enumerate(timelines):
            charts += timeline_charts(timeline, place)
        if self.html:
            text = self._page(report, charts, lines, len(timelines))
            written(Path(self.html), lambda path: _write(path, text.encode()))
            self._tell(self.html)
        if self.plot:
            if not charts:
                raise RecipeError(
                    "there is nothing to draw: no comparison and no price", "dlcloud cost-report"
                )
            drawn = picture(charts, Path(self.plot).suffix.lower().lstrip("."))
            written(Path(self.plot), lambda path: _write(path, drawn))
            self._tell(self.plot)

    def _page(
        self, report: Report, charts: Sequence[Chart], lines: Sequence[ResultRow], trainings: int
    ) -> str:
        paths = self.context.paths
        runs = {line.run.run_id for line in lines}
        counted = [f"{len(lines)} results of {len(runs)} runs"] if lines or not trainings else []
        counted += [f"{trainings} training(s)"] if trainings else []
        told = f"{', '.join(counted)}, {self.context.clock.now():%Y-%m-%d %H:%M} UTC"
        return page(
            template("report.html"),
            bundle(paths.made(paths.cache)),
            report,
            charts,
            title="dlcloud cost report",
            subtitle=told,
        )

    def _timelines(self) -> list[Timeline]:
        """Return the timelines of the runs shown, a cluster's together, and those of files."""
        store = self.context.measurements
        clusters: dict[str, list[Mapping[str, Any]]] = {}
        runs = {run.run_id: run for run in store.runs(self.runs)}
        told = [
            (runs[run_id], of)
            for kind in ("step", "event")
            for run_id, of in store.records(self.runs, kind).items()
        ]
        for run, records in told:
            clusters.setdefault(run.cluster_name, []).extend(records)
        found = [each for name, records in clusters.items() for each in _called(name, timelines_of(records))]
        for file in self.timeline:
            read = timelines_of(_records(file))
            if not read:
                raise RecipeError(f"{file}: no step of a training is in it", "name a trainer's records")
            found += read
        return found

    def _tell(self, file: str) -> None:
        self.context.emit(Notice(message=f"written: {file}"))


def _called(name: str, timelines: Sequence[Timeline]) -> list[Timeline]:
    """Return the timelines of a cluster under its name: workers know their run by another one."""
    several = len(timelines) > 1
    return [replace(each, run=f"{name} {each.run}" if several else name) for each in timelines]


def _records(file: str) -> Iterator[dict[str, Any]]:
    try:
        with Path(file).open(encoding="utf-8", errors="replace") as stream:
            for line in stream:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # the line that a crash tore
                if isinstance(record, dict):
                    yield record
    except OSError as error:
        raise RecipeError(f"{file}: {error.strerror}", "name a trainer's records") from error


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
