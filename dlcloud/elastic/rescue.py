"""What an interrupted training leaves at home: its newest checkpoint, and the files that the recipe keeps."""

from contextlib import suppress
from dataclasses import replace

from dlcloud.analysis.result import Run, RunState
from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.remote_jobs import RemoteJobs, folder_of
from dlcloud.model.cluster import Member
from dlcloud.model.errors import DlcloudError, RemoteCommandError
from dlcloud.model.events import Info, Warned, stage
from dlcloud.recipe.kept_results import KeptFiles
from dlcloud.recipe.recipe import Recipe

ANSWER_S = 10.0
"""How long an instance may take to list its checkpoints; it is billed meanwhile."""


def bring_home(managed: ManagedCluster, recipe: Recipe) -> None:
    """Copy here what an interrupted training has, before its instances end; what fails is a warning.

    Checkpoints in S3 are there already. A second interrupt ends the copy.

    Raises:
        KeyboardInterrupt: It was interrupted again.
    """
    jobs = RemoteJobs(managed=managed, any_may_keep=True)
    checkpoints = [
        (name, member, run)
        for member in _members(managed)
        if (run := jobs.find_unfinished(member, recipe.name)) is not None
        and (name := _newest_checkpoint(jobs, member, run))
    ]
    if not checkpoints:
        return
    name, member, run = max(checkpoints, key=lambda item: item[0])
    try:
        _copy(jobs, member, run, recipe.kept_files, name if recipe.checkpoints is None else "")
    except DlcloudError as error:
        message = f"its checkpoint was not downloaded: {error.message}"
        managed.emit(Warned(message=message, instance_id=run.instance_id))


def _members(managed: ManagedCluster) -> list[Member]:
    try:
        return managed.members()
    except DlcloudError:
        return []


def _newest_checkpoint(jobs: RemoteJobs, member: Member, run: Run) -> str:
    """Return the file name of an instance's newest checkpoint; empty without one, or without an answer."""
    try:
        connection = jobs.connect(member)
        answer = connection.run(f"ls -1 {folder_of(run)}/checkpoints", timeout_s=ANSWER_S)
    except DlcloudError:
        return ""
    names = answer.stdout.decode("utf-8", "replace").split()
    # The step is written with its leading zeros: the newest comes last.
    return max((name for name in names if name.startswith("step-") and name.endswith(".pt")), default="")


def _copy(jobs: RemoteJobs, member: Member, run: Run, kept: KeptFiles, name: str) -> None:
    managed = jobs.managed
    paths, clock = managed.store.paths, managed.clock
    message = "downloading the newest checkpoint; Ctrl-C again loses it"
    with stage(managed.emit, clock, message, instance_id=run.instance_id):
        if name:
            # A worker that is stopped leaves after its step, with a checkpoint of that, and removes no other.
            with suppress(RemoteCommandError):
                jobs.stop(jobs.connect(member), run)
            name = _newest_checkpoint(jobs, member, run) or name
        jobs.fetch_results(member, replace(run, state=RunState.LOST), kept)
        if name:
            folder = paths.make_folder(paths.run(run.run_id) / "checkpoints")
            fetched = jobs.connect(member).fetch_files(f"{folder_of(run)}/checkpoints", [name], folder)
    if name and fetched:
        step = int(name.split("-")[1])
        text = f"the checkpoint of step {step} is kept: {fetched[0]}"
        hint = "with checkpoints: s3://… in the recipe, the next up resumes from it"
        managed.emit(Info(message=f"{text} ({hint})"))
