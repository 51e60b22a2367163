"""Train a plain PyTorch model elastically, in a few lines of your own script.

    from dlcloud.trainer import train

    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(model, batch):
        images, labels = batch
        return torch.nn.functional.cross_entropy(model(images), labels)

    outcome = train(model, optimizer, dataset, loss, batch=96, epochs=10)
    if outcome.first:
        torch.save(model.state_dict(), "model.pt")

`python3 script.py` trains alone. Under `python3 -m trainer.agent ... -- python3 script.py`, on each of any
number of machines, the same script trains with all workers that are there: the batch is divided among the
workers of each step, so the learning rate needs no change, and a worker may join, leave or die at any time. A
worker that is asked to leave raises DrainedError, a SystemExit: the lines after `train` run only where
training has ended.
"""

import atexit
import gc
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .coordination.ledger import LedgerClient, LedgerReporter, WrongRunError
from .drain import Drain
from .engine import Connect, Solo, StateError
from .instance.processes import end_with_parent
from .job import AfterStep, BeforeStep, Collate, Loss, Samples, Schedule, WorkerJob
from .loop import Loop, Outcome, count_steps
from .records import History, Records, log_to_stderr
from .settings import Settings, from_environment


def train(
    model: nn.Module,
    optimizer: Optimizer,
    dataset: Samples,
    loss: Loss,
    *,
    batch: int,
    epochs: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    schedule: Schedule | None = None,
    shards: int | None = None,
    micro_batch: int | None = None,
    before_step: BeforeStep | None = None,
    after_step: AfterStep | None = None,
    loading: int = 0,
    collate: Collate | None = None,
) -> Outcome:
    """Train until `epochs` or `steps` are done, with all workers that are there.

    Args:
        model: Model on `device()`. Its first parameters must be equal on all workers: seed them.
        optimizer: Optimizer of the model's parameters.
        dataset: Map-style data set, the same on every worker: `len(dataset)`, `dataset[index]`. The
            generators of PyTorch, Python and NumPy are seeded for each sample of each step.
        loss: Function that returns the mean loss over a batch.
        batch: Samples in a step, over all workers. The last step of an epoch has the rest.
        epochs: Number of times that every sample is seen. Give this or `steps`.
        steps: Number of steps over all workers and interruptions.
        seed: Seed of the order of samples and everything random in training.
        schedule: Factor of the initial learning rates at each step.
        shards: Number of shards of each batch. Every bit of the result is then that of one fixed worker, on
            processors of the same kind; traffic and memory of gradients are multiplied by it.
        micro_batch: Most samples in one forward pass. Not with `shards`.
        before_step: Called before the optimizer steps: for clipping.
        after_step: Called after each step: for what the script logs itself.
        loading: Processes that load samples ahead; 0 loads between steps.
        collate: Makes a batch of samples; None is `torch.utils.data.default_collate`.

    Returns:
        What came of it, on every worker that was there at the end.

    Raises:
        ValueError: An argument is out of range.
        DrainedError: This worker was asked to leave; others continue.
        SystemExit: Peers or a checkpoint are of another run, or of other settings.
    """
    arguments = locals().copy()  # those of the job, by the same names
    if (arguments.pop("epochs") is None) == (steps is None):
        raise ValueError("give either epochs or steps")
    if not len(dataset):
        raise ValueError("the dataset has no samples")
    if steps is None:
        arguments["steps"] = count_steps(len(dataset), max(batch, 1), epochs or 0)
    return run(WorkerJob(**arguments), from_environment())


def device() -> torch.device:
    """Return the device of this worker's model: its own GPU, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", from_environment().gpu)
    return torch.device("cpu")


def run(job: WorkerJob, settings: Settings) -> Outcome:
    if settings.lighthouse:
        end_with_parent()
        # At its end Python would walk through all objects: a second or more, of the notice's two minutes.
        atexit.register(gc.freeze)
    client = LedgerClient(address=settings.ledger, run=settings.run) if settings.ledger else None
    drain, history = Drain(), History(run=settings.run)
    with (
        Records(
            path=settings.records, run=settings.run, worker=settings.worker, log=log_to_stderr
        ) as records,
        drain.handle_signals(),
    ):
        records.start(**_describe(job))
        loop = Loop(
            job=job,
            settings=settings,
            records=records,
            connect=_make_connect(settings, history),
            reporter=LedgerReporter(client),
            drain=drain,
            history=history,
            connect_to=lambda address: _make_connect(replace(settings, lighthouse=address), history),
        )
        try:
            return loop.run()
        except (WrongRunError, StateError) as error:
            # No script can handle it: end with one line.
            raise SystemExit(f"{settings.worker}: {error}") from error


def _make_connect(settings: Settings, history: History) -> Connect:
    if settings.lighthouse is None:
        return lambda step, _load, _save: Solo(step)
    # A worker that is alone needs no connections.
    from .quorum_engine import QuorumEngine  # noqa: PLC0415

    return partial(
        QuorumEngine,
        lighthouse=settings.lighthouse,
        host=settings.host,
        name=settings.worker,
        instance=settings.instance,
        mates=settings.mates,
        run=settings.run,
        timing=settings.timing,
        history=history,
    )


def _describe(job: WorkerJob) -> dict[str, Any]:
    names = ("batch", "steps", "seed", "shards", "micro_batch")
    return {
        "settings": {name: getattr(job, name) for name in names},
        "samples": len(job.dataset),
        "parameters": sum(parameter.numel() for parameter in job.model.parameters()),
        "device": str(next(job.model.parameters()).device),
        "software": {"python": sys.version.split()[0], "torch": torch.__version__},
    }
