"""Send results to a recipe's tracker while they arrive; without one, nothing of a tracker is imported."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from dlcloud.analysis.result import Run, RunState, parse_record
from dlcloud.analysis.tracking import (
    COST,
    TrackedPoint,
    milliseconds,
    parameters_of,
    points_of,
    points_of_log,
    tags_of,
)
from dlcloud.app.context import Context
from dlcloud.app.results.rows import costs_of_runs
from dlcloud.model.errors import RecipeError, TrackerError, TrackerRefusedError
from dlcloud.model.events import Info, Warned
from dlcloud.recipe.recipe import Recipe, read_recipe
from dlcloud.trackers.mlflow import MlflowServer, TrackedRun


@contextmanager
def tracked(context: Context, recipe: Recipe, find_runs: Callable[[], Sequence[Run]]) -> Iterator[None]:
    """Record runs on the recipe's tracker during the block; what that lacks afterwards is stated.

    Args:
        context: The collaborators.
        recipe: It names the tracker.
        find_runs: Returns the runs, new ones among them.
    """
    feed = feed_of_recipe(context, recipe)
    feed.start(find_runs)
    try:
        yield
    finally:
        feed.close(find_runs)


EVERY_S = 2.0
LONGEST_WAIT_S = 60.0
"""Between two attempts at a server that does not answer."""
PATIENCE_S = 10.0
"""How long the end of a command waits for a server that does not answer."""
MOST_FILES = 1000
STATUSES = {RunState.DONE: "FINISHED", RunState.FAILED: "FAILED", RunState.LOST: "KILLED"}

FindRuns = Callable[[], Sequence[Run]]

log = logging.getLogger(__name__)


def feed_of_recipe(context: Context, recipe: Recipe) -> "TrackerFeed":
    """Return the feed of the server that a recipe names."""
    track = recipe.track
    server = MlflowServer(url=track.mlflow if track else "", variables=context.tracker_variables)
    name = (track.experiment if track else "") or recipe.name
    return TrackerFeed(context=context, server=server, name=name, facts=dict(recipe.workload.facts))


def send_all(context: Context, url: str, runs: Sequence[Run]) -> None:
    """Send runs to a server: to the experiment of their recipe, else of their workload's name.

    Raises:
        TrackerError: The server does not answer.
        RecipeError: The address has a user or a password in it.
    """
    if "@" in url:
        raise RecipeError("the server's address must not have credentials", "set MLFLOW_TRACKING_USERNAME")
    server = MlflowServer(url=url, variables=context.tracker_variables)
    for cluster_id, name in dict.fromkeys((run.cluster_id, run.workload) for run in runs):
        cluster = context.clusters.find(cluster_id)  # None for imported runs
        recipe = None if cluster is None else read_recipe(cluster.recipe_text, cluster.recipe_path)
        own = recipe.track.experiment if recipe is not None and recipe.track is not None else ""
        facts = {} if recipe is None else dict(recipe.workload.facts)
        feed = TrackerFeed(context=context, server=server, name=own or name, facts=facts)
        feed.send([run for run in runs if (run.cluster_id, run.workload) == (cluster_id, name)])


@dataclass(slots=True, kw_only=True)
class TrackerFeed:
    """Sends runs to one experiment of a server.

    Args:
        context: The collaborators.
        server: The server.
        name: Of the experiment there.
        facts: Expressions of what is read from the programs' output, by name.
    """

    context: Context
    server: MlflowServer
    name: str
    facts: dict[str, str]
    _experiment: str = ""
    _tracked: dict[str, TrackedRun] = field(default_factory=dict)
    _complete: set[str] = field(default_factory=set)
    _is_down: bool = False
    _is_without_files: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self, find_runs: FindRuns) -> None:
        """Send what is new, now and then, in a thread."""
        self._thread = threading.Thread(
            target=self._follow, args=(find_runs,), name="dlcloud-track", daemon=True
        )
        self._thread.start()

    def close(self, find_runs: FindRuns) -> None:
        """Stop the thread, send what is left, and warn of what could not be sent; it raises no error."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        deadline = self.context.clock.monotonic() + PATIENCE_S
        while (left := self._round(find_runs)) and self.context.clock.monotonic() < deadline:
            self.context.clock.sleep(EVERY_S / 2)
        try:
            self._send_costs(find_runs())
        except Exception as error:  # noqa: BLE001  a tracker never fails a command
            log.warning("the final costs were not sent: %s", error)
        if left:
            command = f"dlcloud export {self.server.url} --run {left[0].cluster_name}"
            message = f"{len(left)} run(s) are not on MLflow at {self.server.url}, all are stored here"
            self.context.emit(Warned(message=f"{message}; {command} sends them"))

    def send(self, runs: Sequence[Run]) -> None:
        """Send runs once.

        Raises:
            TrackerError: The server does not answer.
        """
        if not self._experiment:
            self._experiment = self.server.experiment(self.name)
            self._tracked = self.server.runs(self._experiment)
            self._complete |= {name for name, run in self._tracked.items() if run.is_complete}
        for run in runs:
            if run.run_id not in self._complete and not run.head_run_id:
                try:
                    self._send_run(run)
                except TrackerRefusedError as error:
                    self._complete.add(run.run_id)
                    self.context.emit(Warned(message=f"{run.run_id} is not tracked: {error.message}"))

    def _follow(self, find_runs: FindRuns) -> None:
        wait_s = EVERY_S
        while not self._stop.wait(wait_s):
            self._round(find_runs)
            wait_s = min(LONGEST_WAIT_S, wait_s * 2) if self._is_down else EVERY_S

    def _round(self, find_runs: FindRuns) -> list[Run]:
        """Send what is new; return what the server lacks."""
        try:
            self.send(find_runs())
        except Exception as error:
            if not self._is_down:
                log.warning("tracking failed", exc_info=error)
                own = error.message if isinstance(error, TrackerError) else ""
                reason = own or f"MLflow at {self.server.url}: {type(error).__name__}"
                then = "results are stored here, and sent when it answers"
                self.context.emit(Warned(message=f"{reason}; {then}"))
            self._is_down = True
            return self._left(find_runs)
        if self._is_down:
            self.context.emit(Info(message=f"MLflow at {self.server.url} answers again"))
            self._is_down = False
        return self._left(find_runs)

    def _left(self, find_runs: FindRuns) -> list[Run]:
        return [run for run in find_runs() if run.run_id not in self._complete and not run.head_run_id]

    def _send_run(self, run: Run) -> None:
        tracked = self._tracked.get(run.run_id)
        if tracked is None:
            name = f"trial {run.trial}" if run.trial else run.run_id
            tracked = self.server.create(self._experiment, name, tags_of(run), milliseconds(run.started_at))
            self._tracked[run.run_id] = tracked
            self.server.describe(tracked, parameters_of(run))
        runs = self.context.runs
        position = runs.stored_bytes(run.run_id)
        lines = runs.lines_from(run.run_id, tracked.position) if position > tracked.position else []
        points = [*points_of(run, (record for line in lines if (record := parse_record(line))))]
        if run.ended_at is not None:
            self._finish(run, tracked, points, position)
        elif points:
            now = self.context.clock.now()
            self.server.log(tracked, [*points, *self._costs([run], now)], position)
            self._tracked[run.run_id] = TrackedRun(
                tracker_id=tracked.tracker_id, artifacts=tracked.artifacts, position=position
            )

    def _finish(self, run: Run, tracked: TrackedRun, points: Sequence[TrackedPoint], position: int) -> None:
        ended_at = run.ended_at or run.started_at
        printed = self._printed(run, milliseconds(ended_at))
        self.server.log(tracked, [*points, *printed, *self._costs([run], ended_at)], position)
        self._upload(run, tracked)
        self.server.end(tracked, STATUSES.get(run.state, "KILLED"), milliseconds(ended_at))
        self._complete.add(run.run_id)

    def _printed(self, run: Run, at_ms: int) -> list[TrackedPoint]:
        path = self.context.paths.run_log(run.run_id)
        if not self.facts or not path.exists():
            return []
        with path.open(encoding="utf-8", errors="replace") as lines:
            return [*points_of_log(lines, self.facts, at_ms)]

    def _upload(self, run: Run, tracked: TrackedRun) -> None:
        """Store the log and the files that came home with the run."""
        if self._is_without_files:
            return
        paths = self.context.paths
        files = [("log.txt", paths.run_log(run.run_id)), *_files(paths.run_files(run.run_id))]
        try:
            for name, path in files[:MOST_FILES]:
                if path.is_file():
                    self.server.upload(tracked, name, path)
        except TrackerRefusedError as error:
            self._is_without_files = True
            self.context.emit(Warned(message=f"files are not sent: {error.message}"))

    def _costs(self, runs: Sequence[Run], now: datetime) -> list[TrackedPoint]:
        """Return the costs of runs so far; the step is the seconds since the run began."""
        costs = costs_of_runs(self.context.measurements, runs, now)
        return [
            TrackedPoint(
                key=COST,
                value=float(cost.usd),
                step=max(0, int((now - run.started_at).total_seconds())),
                at_ms=milliseconds(now),
            )
            for run in runs
            if (cost := costs.get(run.run_id)) is not None and cost.usd is not None
        ]

    def _send_costs(self, runs: Sequence[Run]) -> None:
        """Send the final costs: the end of an instance belongs to its last run."""
        now = self.context.clock.now()
        for run in runs:
            tracked = self._tracked.get(run.run_id)
            if tracked is not None and run.run_id in self._complete and not tracked.is_complete:
                self.server.log(tracked, self._costs([run], now), self.context.runs.stored_bytes(run.run_id))


def _files(folder: Path) -> list[tuple[str, Path]]:
    if not folder.is_dir():
        return []
    return [
        (f"files/{path.relative_to(folder)}", path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    ]
