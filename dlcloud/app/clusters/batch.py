"""`dlcloud up --on batch`: AWS Batch holds the queue of an experiment; results return through a bucket."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from dlcloud.analysis.result import Run, RunState
from dlcloud.analysis.trials import ExperimentProgress, Trial, TrialState, TrialStatus, best_trial, usd_at_end
from dlcloud.app.clusters.experiment import ExperimentUp
from dlcloud.app.context import Context
from dlcloud.cloud.compute.batch_queues import BatchJob
from dlcloud.launch.batch_cluster import BatchCluster, note_members
from dlcloud.launch.launcher import Launcher
from dlcloud.model.cluster import Cluster
from dlcloud.model.errors import BudgetError, DlcloudError, InstanceError
from dlcloud.model.events import Info, Progress, Warned
from dlcloud.model.money import member_usd, total_usd
from dlcloud.planning.plan import Plan
from dlcloud.planning.storage import results_uri
from dlcloud.recipe.batch import trials_definition
from dlcloud.recipe.recipe import Recipe, read_recipe
from dlcloud.resources.texts import template
from dlcloud.runs.batch_results import BatchResults, make_manifest, pack_code
from dlcloud.runs.experiment_runner import FIRST_FAILURES, refuse_failed
from dlcloud.store.clusters import BATCH, BATCH_JOB

POLL_S = {"aws": 5.0, "local": 0.5}
QUIET_POLLS = 4
"""How often nothing may run before Batch is asked why."""


@dataclass(slots=True, kw_only=True)
class BatchUp:
    """The trials of one cluster on AWS Batch.

    Args:
        context: The collaborators.
        experiment: What is done already, and what is left.
        launcher: Of the cluster.
        plan: Its network, its prices and its budget.
    """

    context: Context
    experiment: ExperimentUp
    launcher: Launcher
    plan: Plan
    _results: BatchResults = field(init=False)
    _batch: BatchCluster = field(init=False)

    def __post_init__(self) -> None:
        recipe = self.experiment.workload.recipe
        self._results = results_of(self.launcher, recipe)
        self._batch = BatchCluster(launcher=self.launcher, recipe=recipe)

    def run(self) -> None:
        """Submit the trials that are left, store their results as they come, until none is left.

        Raises:
            CloudError: Batch refuses something.
            BudgetError: The recipe's hours are over.
            InstanceError, PartialError: Trials were given up.
        """
        experiment = self.experiment
        experiment.begin_anew()
        experiment.end_lost([])
        self._results.check()
        recipe = experiment.workload.recipe
        hardware = self.launcher.cloud.types.hardware(recipe.instances.types)
        definition = trials_definition(recipe, list(hardware.values()), template("batch_trial.py"))
        self._batch.prepare(self.plan, definition, hardware)
        job = self._batch.last_job()
        try:
            if job is not None:
                self._follow(*job)
            while waiting := self._waiting():
                self._follow(*self._submit(waiting))
        finally:
            experiment.read_again()
        refuse_failed(experiment.statuses())

    def _submit(self, trials: Sequence[Trial]) -> tuple[str, str]:
        workload = self.experiment.workload
        name, code = pack_code(workload.program)
        self._results.managed.cloud.buckets.put(self._results.uri, name, code)
        place = self._results.place() | {"code": name}
        manifest = make_manifest(
            workload.recipe,
            workload.program,
            trials,
            cluster_name=self.launcher.cluster.name,
            digest=self.experiment.records.digest,
            ends_at=self.launcher.cluster.created_at + timedelta(minutes=self.plan.life_minutes),
        )

        def variables(job: str) -> dict[str, str]:
            self._results.put_job(job, manifest)
            return {"DLCLOUD_BATCH": json.dumps(place | {"job": job})}

        return self._batch.submit(len(trials), variables)

    def _waiting(self) -> list[Trial]:
        return [status.trial for status in self._statuses() if status.state is TrialState.WAITING]

    def _statuses(self) -> list[TrialStatus]:
        return self.experiment.records.statuses()

    def _follow(self, name: str, job_id: str) -> None:
        """Store results until a job has ended, and of its trials without one why they have none."""
        launcher, clock = self.launcher, self.context.clock
        ends_at = launcher.cluster.created_at + timedelta(minutes=self.plan.life_minutes)
        runs: list[Run] = []
        began_s = clock.monotonic()
        last_reason = ""
        while True:
            job = launcher.cloud.batch.describe(job_id)
            new = self._results.take(name)
            runs += new
            note_members(launcher)
            self._emit(job, new, each_s=(clock.monotonic() - began_s) / len(runs) if runs else None)
            if job.is_over:
                break
            if not job.running and clock.monotonic() - began_s >= QUIET_POLLS * POLL_S[self.plan.cloud]:
                last_reason = self._say_why(job_id, last_reason)
            if self._is_hopeless(job, runs):
                reason = launcher.cloud.batch.first_failure(job_id)
                launcher.cloud.batch.terminate(job_id)
                raise InstanceError(
                    f"the first {FIRST_FAILURES} trials failed: the others are not run"
                    + (f"; the first one: {reason}" if reason else ""),
                    f"dlcloud logs {runs[0].run_id}" if runs else "check the image, the bucket and its key",
                )
            if clock.now() >= ends_at:
                launcher.cloud.batch.terminate(job_id)
                raise BudgetError("the recipe's hours are over", "budget.max_hours of the recipe")
            clock.sleep(POLL_S[self.plan.cloud])
        self._put_failures(name, job_id)

    def _put_failures(self, name: str, job_id: str) -> None:
        missing = self._results.missing(name)
        reasons = self.launcher.cloud.batch.reasons(job_id, missing) if missing else {}
        for index in missing:
            run = self._results.put_failure(name, index, reasons.get(index, "it says nothing"))
            message = f"trial {run.trial} brought no result: {reasons.get(index, '')}"
            self.context.emit(Warned(message=message))

    def _say_why(self, job_id: str, last_reason: str) -> str:
        """Emit why nothing runs, unless it was the last thing said; return what was said last."""
        reason = self.launcher.cloud.batch.why_waiting(self.launcher.cluster_id, job_id)
        if reason and reason != last_reason:
            self.context.emit(Warned(message=f"AWS Batch starts nothing yet: {reason}"))
        return reason or last_reason

    def _is_hopeless(self, job: BatchJob, runs: Sequence[Run]) -> bool:
        """True if enough trials failed and none succeeded, those that brought no result included."""
        failed = max(len(runs), job.counts.get("FAILED", 0))
        has_result = job.counts.get("SUCCEEDED") or any(run.state is RunState.DONE for run in runs)
        return failed >= FIRST_FAILURES and not has_result

    def _emit(self, job: BatchJob, new: Sequence[Run], *, each_s: float | None) -> None:
        """Emit the failures among new runs, and how far the experiment is."""
        for run in new:
            if run.state is RunState.FAILED:
                message = f"trial {run.trial} failed: dlcloud logs {run.run_id}"
                self.context.emit(Warned(message=message, instance_id=run.instance_id))
        progress = self._progress(job, each_s)
        self.context.emit(
            Progress(
                message=progress.describe(),
                done=progress.done + progress.failed,
                total=progress.total,
                remaining_s=progress.left_s,
                rows=progress.rows(),
            )
        )

    def _progress(self, job: BatchJob, each_s: float | None) -> ExperimentProgress:
        """Return how far it is; `each_s` is the time from one result to the next."""
        experiment, cluster = self.experiment.experiment, self.launcher.cluster
        statuses, now = self._statuses(), self.context.clock.now()
        members = self.context.clusters.members(cluster.cluster_id)
        usd = total_usd(member_usd(member, cluster.disk_gib, now) for member in members)
        left = sum(status.state is TrialState.WAITING for status in statuses)
        left_s = None if each_s is None else left * each_s
        return ExperimentProgress(
            total=experiment.count,
            done=sum(status.state is TrialState.DONE for status in statuses),
            running=job.running,
            failed=sum(status.state is TrialState.FAILED for status in statuses),
            pruned=0,
            usd=usd,
            left_s=left_s,
            best=best_trial(statuses, maximize=experiment.goal == "maximize"),
            end_usd=usd_at_end(members, usd, left_s, disk_gib=cluster.disk_gib, region=cluster.region),
        )


def results_of(launcher: Launcher, recipe: Recipe) -> BatchResults:
    """Return the results of a cluster's trials in the recipe's bucket."""
    uri = results_uri(recipe, launcher.cluster_id)
    return BatchResults(managed=launcher, uri=uri, recipe=recipe)


def take_late(context: Context, launcher: Launcher) -> bool:
    """Store the results that trials brought before a cluster ended; True if there are any.

    What cannot be read is left, with a warning.
    """
    jobs = context.clusters.intents(launcher.cluster_id, BATCH_JOB)
    if not jobs:
        return False
    cluster = launcher.cluster
    try:
        results = results_of(launcher, read_recipe(cluster.recipe_text, cluster.recipe_path))
        runs = [run for job in jobs if job.outcome != "" for run in results.take(job.detail)]
    except DlcloudError as error:
        context.emit(Warned(message=f"results were not read: {error.message}"))
        return False
    if runs:
        context.emit(Info(message=f"{len(runs)} trial(s) had ended meanwhile: their results are stored"))
    return bool(runs)


def uses_batch(context: Context, cluster: Cluster) -> bool:
    """True if AWS Batch runs the trials of a cluster."""
    return bool(context.clusters.intents(cluster.cluster_id, BATCH))
