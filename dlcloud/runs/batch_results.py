"""The trials of an experiment that AWS Batch runs: what their containers need, and what they bring back.

Everything lies below one prefix: `code-DIGEST.tar.gz`, and for each job `JOB/manifest.json.gz` and
`JOB/results/RUN.tar.gz`.
"""

import gzip
import io
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dlcloud.analysis.result import Run, RunState
from dlcloud.analysis.trials import Trial
from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.preflight import PriceLookup
from dlcloud.launch.remote_jobs import LARGEST_STATUS
from dlcloud.launch.user_files import check_files
from dlcloud.model.instance import Market
from dlcloud.model.untrusted import parse_json
from dlcloud.recipe.batch import set_up_script
from dlcloud.recipe.data import s3_endpoint, split_uri
from dlcloud.recipe.recipe import Recipe
from dlcloud.recipe.requirements import pip_lines
from dlcloud.runs.experiment_runner import trial_setting
from dlcloud.runs.program import RunProgram, list_package
from dlcloud.runs.run_archive import SUFFIX, unpack_run, unreadable
from dlcloud.ssh.copy import pack_files

DIGITS = 16
HOST = "batch"
"""The name in records of the instance, which a container does not know when its command is made."""

Manifest = dict[str, Any]


def pack_code(program: RunProgram) -> tuple[str, bytes]:
    """Return the program and the user's files as an archive, with its name.

    Raises:
        RecipeError: The files cannot be read, are too many or too large.
    """
    user_files = () if program.files is None else check_files(program.files).entries
    parts = (("benchmarks", list_package(program.package)), ("work", user_files))
    archive = io.BytesIO()
    digest = pack_files(
        [replace(entry, name=f"{folder}/{entry.name}") for folder, files in parts for entry in files], archive
    )
    return f"code-{digest[:DIGITS]}.tar.gz", archive.getvalue()


def make_manifest(
    recipe: Recipe,
    program: RunProgram,
    trials: Sequence[Trial],
    *,
    cluster_name: str,
    digest: str,
    ends_at: datetime,
) -> Manifest:
    """Return what the containers of a job read: the trials in the order of their indices, and their set-up.

    Args:
        recipe: With an experiment.
        program: That runs one trial, in its setting.
        trials: Of this job.
        cluster_name: Begins the ids of runs.
        digest: Of the experiment.
        ends_at: After which no trial begins, and those that run are ended.
    """
    repeats = recipe.experiment.repeats if recipe.experiment is not None else 1
    settings = [(trial, trial_setting(recipe, trial)) for trial in trials]
    return {
        "schema": 1,
        "experiment": digest,
        "ends_at": ends_at.timestamp(),
        "setup": set_up_script(recipe),
        "requirements": "".join(f"{line}\n" for line in pip_lines(recipe.setup.requirements)),
        "variables": dict(recipe.workload.environment),
        "keep": ["**"] if (patterns := recipe.kept_files.patterns) is None else list(patterns),
        "trials": [
            {
                "run_id": f"{cluster_name}-{secrets.token_hex(4)}",
                "number": trial.number,
                "values": trial.key,
                "command": program.in_setting(setting, repeats=repeats, turn="turn").command(
                    "python3", host=HOST
                ),
            }
            for trial, setting in settings
        ],
    }


@dataclass(slots=True, kw_only=True)
class BatchResults:
    """The results of one cluster's trials in a bucket.

    Args:
        managed: The cluster.
        uri: The prefix.
        recipe: Of the cluster.
    """

    managed: ManagedCluster
    uri: str
    recipe: Recipe
    _manifests: dict[str, Manifest] = field(default_factory=dict)
    _prices: PriceLookup = field(init=False)

    def __post_init__(self) -> None:
        self._prices = PriceLookup(self.managed.cloud.prices)

    def place(self) -> dict[str, str]:
        """Return where containers find all of it."""
        cloud = self.managed.cloud
        region = cloud.buckets.region_of(self.uri)
        bucket, prefix = split_uri(self.uri)
        endpoint = cloud.endpoint_url or s3_endpoint(region)
        return {"endpoint": endpoint, "region": region, "bucket": bucket, "prefix": prefix}

    def check(self) -> None:
        """Look into the bucket, before anything is made.

        Raises:
            CloudError: It cannot be listed.
        """
        self.managed.cloud.buckets.names(f"{self.uri}/results")

    def put_job(self, job: str, manifest: Manifest) -> None:
        """Store what a job's containers read."""
        content = gzip.compress(json.dumps(manifest).encode())
        self.managed.cloud.buckets.put(self.uri, f"{job}/manifest.json.gz", content)
        self._manifests[job] = manifest

    def manifest(self, job: str) -> Manifest:
        """Return the manifest of a job."""
        if job not in self._manifests:
            content = self.managed.cloud.buckets.get(self.uri, f"{job}/manifest.json.gz")
            self._manifests[job] = json.loads(gzip.decompress(content))
        return self._manifests[job]

    def take(self, job: str) -> list[Run]:
        """Store the results of a job that are in the bucket and not stored yet; return their runs."""
        buckets = self.managed.cloud.buckets
        names = buckets.names(f"{self.uri}/{job}/results")
        present = {name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)}
        if not present:
            return []
        stored = {run.run_id for run in self.managed.store.runs.of_cluster(self.managed.cluster_id)}
        new = [
            trial
            for trial in self.manifest(job)["trials"]
            if trial["run_id"] in present and trial["run_id"] not in stored
        ]
        return [
            self._store(job, trial, buckets.get(self.uri, f"{job}/results/{trial['run_id']}{SUFFIX}"))
            for trial in new
        ]

    def missing(self, job: str) -> list[int]:
        """Return the indices of a job's trials of which nothing is stored."""
        stored = {run.run_id for run in self.managed.store.runs.of_cluster(self.managed.cluster_id)}
        return [
            index for index, trial in enumerate(self.manifest(job)["trials"]) if trial["run_id"] not in stored
        ]

    def put_failure(self, job: str, index: int, reason: str) -> Run:
        """Store that a container ended without a result."""
        trial, now = self.manifest(job)["trials"][index], self.managed.clock.now()
        paths = self.managed.store.paths
        folder = paths.make_folder(paths.run(trial["run_id"]))
        (folder / "log").write_text(f"AWS Batch: {reason}\n", "utf-8")
        end = {"exit_status": None, "started_at": now.timestamp(), "ended_at": now.timestamp()}
        return self._put(job, trial, end, b"")

    def _store(self, job: str, trial: dict[str, Any], archive: bytes) -> Run:
        paths = self.managed.store.paths
        folder = paths.make_folder(paths.run(trial["run_id"]))
        end = unpack_result(archive, folder)
        records = folder / "records.jsonl"
        return self._put(job, trial, end, records.read_bytes() if records.exists() else b"")

    def _put(self, job: str, trial: dict[str, Any], end: dict[str, Any], records: bytes) -> Run:
        """Store a run with its records and its end together."""
        cluster, runs = self.managed.cluster, self.managed.store.runs
        prices = self._prices.of(str(end.get("instance_type", "")), str(end.get("zone", "")))
        market = Market.SPOT if end.get("market") == "spot" else Market.ON_DEMAND
        price = next((one for one in prices if one.market is market), None)
        began, ended = (datetime.fromtimestamp(float(end[name]), UTC) for name in ("started_at", "ended_at"))
        status = end["exit_status"]
        run = Run(
            run_id=trial["run_id"],
            cluster_id=cluster.cluster_id,
            cluster_name=cluster.name,
            instance_id=str(end.get("instance_id", "")),
            workload=self.recipe.name,
            cloud=cluster.cloud,
            region=cluster.region,
            zone=str(end.get("zone", "")),
            instance_type=str(end.get("instance_type", "")) or self.recipe.instances.types[0],
            market=market,
            image_id=str(end.get("image_id", "")),
            hourly_usd=None if price is None else price.hourly_usd,
            price_source="" if price is None else price.source,
            price_as_of=None if price is None else price.as_of,
            state=RunState.DONE if status == 0 else RunState.FAILED,
            exit_status=status,
            started_at=began,
            setup_at=began,
            ended_at=ended,
            experiment=self.manifest(job)["experiment"],
            trial=trial["number"],
            trial_values=trial["values"],
        )
        runs.add_ended(run, records, prices)
        return run


def unpack_result(archive: bytes, folder: Path) -> dict[str, Any]:
    """Write log, records and kept files of a trial to a folder; return how it ended.

    Raises:
        InstanceError: It is no such archive: a container of the user's wrote it.
    """
    content = unpack_run(archive, folder, document="end.json")
    try:
        end = parse_json(content.decode())
        float(end["started_at"]), float(end["ended_at"])
        if type(end["exit_status"]) is not int or abs(end["exit_status"]) > LARGEST_STATUS:
            raise TypeError("its exit status is no number")  # noqa: TRY301  one kind of fault with the others
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable(folder, error) from error
    return dict(end)
