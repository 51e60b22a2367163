"""Runs in the bucket of a recipe's results: stored by the controller of a detached cluster, and fetched."""

import io
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dlcloud.analysis.result import Run
from dlcloud.app.context import Context
from dlcloud.launch.launcher import Launcher
from dlcloud.model.errors import DlcloudError
from dlcloud.model.events import Info, Warned
from dlcloud.planning.storage import results_uri
from dlcloud.recipe.recipe import Recipe
from dlcloud.runs.run_archive import SUFFIX, unpack_run
from dlcloud.store.measurements import Selection
from dlcloud.store.transfer import RunTransfer

FOLDER = "runs"
DOCUMENT = "run.jsonl"
LOOK_S = 2.0


@dataclass(slots=True, kw_only=True)
class StoredResults:
    """The runs of one cluster in the bucket of its results.

    Args:
        context: Of this command.
        launcher: Of the cluster.
        recipe: It names the bucket.
    """

    context: Context
    launcher: Launcher
    recipe: Recipe
    _stored: set[str] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def uri(self) -> str:
        return f"{results_uri(self.recipe, self.launcher.cluster_id)}/{FOLDER}"

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Store each run as it ends, during the block; nothing without a bucket."""
        if self.recipe.results is None:
            yield
            return
        thread = threading.Thread(target=self._serve, name="results", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def fetch(self) -> int:
        """Import the runs of the bucket, with their logs and files; return how many are new.

        Raises:
            CloudError: The bucket does not answer.
            RecipeError, InstanceError: What lies there cannot be read.
        """
        buckets, paths = self.launcher.cloud.buckets, self.context.paths
        added = 0
        for name in sorted(buckets.names(self.uri)):
            folder = paths.make_folder(paths.run(name.removesuffix(SUFFIX)))
            document = unpack_run(buckets.get(self.uri, name), folder, document=DOCUMENT)
            counts = RunTransfer(self.context.database).import_lines(
                [(name, document.splitlines(keepends=True))]
            )
            added += counts.added + counts.completed
        return added

    def _serve(self) -> None:
        """Store what has ended, again and again, and once more at the end."""
        is_over = False
        while not is_over:
            is_over = self._ended.wait(LOOK_S)
            try:
                self._store_new()
            except DlcloudError as error:
                message = f"results are not in {self.recipe.results} yet: {error.message}"
                self.context.emit(Warned(message=message))

    def _store_new(self) -> None:
        for run in self.context.runs.of_cluster(self.launcher.cluster_id):
            if run.ended_at is not None and run.run_id not in self._stored:
                self.launcher.cloud.buckets.put(self.uri, f"{run.run_id}{SUFFIX}", self._pack(run))
                self._stored.add(run.run_id)

    def _pack(self, run: Run) -> bytes:
        selection = Selection(run_ids=[run.run_id])
        lines = RunTransfer(self.context.database).export_lines(selection, samples=True, commands=True)
        text = "".join(f"{line}\n" for line in lines).encode()
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w:gz") as archive:
            entry = tarfile.TarInfo(DOCUMENT)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
            for path in (self.context.paths.run_log(run.run_id), self.context.paths.run_files(run.run_id)):
                if path.exists():
                    archive.add(path, path.name)
        return content.getvalue()


def fetch_lost(results: StoredResults) -> bool:
    """Fetch what the bucket has of a cluster whose controller is gone; True if there was anything."""
    if results.recipe.results is None:
        return False
    count = results.fetch()
    results.context.emit(Info(message=f"{count} run(s) came from {results.recipe.results}"))
    return count > 0
