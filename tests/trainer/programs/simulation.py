"""Workers as threads of one process, in step with each other: every schedule gives the same run every time.

Only one thread computes at a time, for the generators that training seeds belong to the whole process. A
worker dies by an exception that nothing catches, at the point that the schedule names.
"""

import threading
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import nn
from torch.utils.data import Dataset
from trainer.coordination.ledger import Entry, LedgerReporter
from trainer.drain import Drain, DrainedError
from trainer.engine import Solo, StepPlace, copy_state
from trainer.job import WorkerJob
from trainer.loop import AlreadyDoneError, Loop
from trainer.records import Records
from trainer.settings import Settings

POINTS = ("before_forward", "in_sum", "torn_sum", "after_sum", "after_commit", "after_ask", "while_serving")
LIMIT_S = 300.0


class KilledError(BaseException):
    """kill -9."""


@dataclass(frozen=True)
class Action:
    """What happens at a round: join, drain or kill; a kill happens at one of POINTS."""

    round: int
    kind: str
    worker: int
    point: str = ""


@dataclass(frozen=True)
class Schedule:
    samples: int
    batch: int
    steps: int
    shards: int | None
    seed: int
    workers: int
    actions: tuple = ()

    def to_json(self):
        return asdict(self)

    @classmethod
    def from_json(cls, given):
        return cls(**{**given, "actions": tuple(Action(**action) for action in given["actions"])})


class Points(Dataset):
    """Noisy points: the noise of a sample is drawn again at every step."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(count, 6, generator=generator)
        self.outputs = self.inputs.sum(1, keepdim=True)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index] + 0.01 * torch.randn(6), self.outputs[index]


def job_of(schedule, before_forward=lambda: None):
    torch.manual_seed(schedule.seed)
    norm = (
        nn.BatchNorm1d(5)
        if schedule.shards is None or schedule.batch >= 2 * schedule.shards
        else nn.Identity()
    )
    model = nn.Sequential(nn.Linear(6, 5), norm, nn.Dropout(0.3), nn.ReLU(), nn.Linear(5, 1))

    def mean_loss(model, batch):
        before_forward()
        inputs, outputs = batch
        # One sample has no variance that BatchNorm could take.
        if len(inputs) == 1:
            model = nn.Sequential(model[0], model[3], model[4])
        return nn.functional.mse_loss(model(inputs), outputs)

    return WorkerJob(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
        dataset=Points(schedule.samples),
        loss=mean_loss,
        batch=schedule.batch,
        steps=schedule.steps,
        seed=schedule.seed,
        schedule=lambda step: 0.9**step,
        shards=schedule.shards,
    )


@dataclass
class ListRecords(Records):
    """Keeps records in memory."""

    kept: list = field(default_factory=list)

    def _write(self, kind, values):
        self.kept.append({"record": kind, "worker": self.worker, **values})
        return ""


@dataclass
class MemoryReporter(LedgerReporter):
    """A ledger in memory; `world.entry` is the entry of all workers."""

    world: object = None

    def read(self):
        return self.world.entry

    def report_soon(self, **progress):
        self.report_now(**progress)

    def report_now(self, **progress):
        self.world.entry = self.world.entry.advance(**progress)

    def claim_first_step(self, origin):
        # No worker claims and dies before others see that it has: a claim that has led to nothing is void.
        self.world.entry = replace(self.world.entry, origin=origin)
        return True

    def close(self):
        pass


class World:
    """Every worker of a run.

    Args:
        schedule: What happens.
        folder: For checkpoints that outlive workers; None keeps none.
    """

    def __init__(self, schedule, folder=None):
        self.schedule, self.folder = schedule, folder
        self.baton = threading.Condition()
        self.entry = Entry(run="sim")
        self.alive, self.arrived, self.members = {}, {}, []
        self.waiting, self.sent = set(), {}
        self.outcome = {}
        self.deaths, self.round = {}, 0
        self.records, self.states, self.errors = [], {}, []
        self.pending = sorted(schedule.actions, key=lambda action: action.round)
        self.threads, self.names = [], 0

    def run(self):
        """Run until all workers have ended; while the run is not done, start another."""
        with self.baton:
            for _ in range(self.schedule.workers):
                self.spawn()
            while not self.entry.done:
                if not self.baton.wait_for(lambda: not self.alive, LIMIT_S):
                    raise AssertionError(
                        f"stuck in round {self.round}: {self.alive.keys()}, {self.arrived.keys()}"
                    )
                self.check()
                if not self.entry.done:
                    self.spawn()
            self.baton.wait_for(lambda: not self.alive, LIMIT_S)
            self.check()
        return self

    def check(self):
        if self.errors:
            raise self.errors[0]

    def spawn(self):
        name = f"w{self.names:03d}"
        self.names += 1
        worker = Worker(self, name)
        self.alive[name] = worker
        thread = threading.Thread(target=worker.run, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()

    def gone(self, name):
        """Take a worker out; those that wait for it look again."""
        self.alive.pop(name, None)
        self.arrived.pop(name, None)
        self.form()
        self.settle()
        self.baton.notify_all()

    def arrive(self, worker):
        self.arrived[worker.name] = worker
        self.form()

    def form(self):
        """Agree, once every living worker has come."""
        if not self.alive or set(self.arrived) != set(self.alive):
            return
        if self.act():
            return
        names = sorted(self.alive)
        most = max(names, key=lambda name: (self.alive[name].step, name))
        top = self.alive[most].step
        self.round += 1
        behind = [name for name in names if self.alive[name].step < top]
        served = None
        if behind:
            served = copy_state(self.alive[most].save())
            if self.deaths.get(most) == "while_serving":
                served = None
        for rank, name in enumerate(names):
            # Each gets its own, as through a network: an optimizer keeps the tensors that it is given.
            heal = copy_state(served) if name in behind and served else None
            lost = name in behind and served is None
            self.alive[name].answer = (
                StepPlace(rank=rank, size=len(names), quorum=self.round),
                heal,
                lost,
            )
        self.members, self.waiting, self.sent, self.outcome = names, set(), {}, {}
        self.arrived = {}
        self.baton.notify_all()

    def act(self):
        """Act on the schedule for this round; True if a worker must be waited for."""
        self.deaths = {}
        joined = False
        while self.pending and self.pending[0].round <= self.round:
            action = self.pending.pop(0)
            names = sorted(self.alive)
            name = names[action.worker % len(names)]
            if action.kind == "join" and len(names) < 5:
                self.spawn()
                joined = True
            elif action.kind == "drain":
                self.alive[name].drain.request("schedule")
            elif action.kind == "kill":
                self.deaths[name] = action.point
        if joined and self.deaths:
            # The deaths of this round come when the newcomers are there.
            self.pending = [
                Action(self.round, "kill", names.index(n), p) for n, p in self.deaths.items()
            ] + self.pending
            self.deaths = {}
        return joined

    def settle(self):
        """Decide the sums, once every member waits for them or is gone."""
        if self.outcome or not self.members:
            return
        present = [name for name in self.members if name in self.alive]
        if not set(present) <= self.waiting:
            return
        whole = len(present) == len(self.members)
        torn = [name for name in present if self.deaths.get(name) == "torn_sum"]
        broken = [name for name in present if self.deaths.get(name) == "in_sum"]
        completed = whole and not broken
        if completed:
            self.add_up()
        lucky = min((name for name in present if name not in torn), default=None)
        for name in present:
            self.outcome[name] = completed and (not torn or name == lucky)
        self.baton.notify_all()

    def add_up(self):
        for values in zip(*(self.sent.get(name, []) for name in self.members), strict=True):
            total = values[0].clone()
            for value in values[1:]:
                total += value
            for value in values:
                value.copy_(total)


class Worker:
    """One worker: the real loop on an engine that only knows the world."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.step, self.answer, self.has_asked = 0, None, False
        self.drain = Drain()
        self.records = ListRecords(path=None, run="sim", worker=name, kept=world.records)

    def run(self):
        with self.world.baton:
            try:
                self.loop().run()
            except KilledError:
                pass
            except (DrainedError, AlreadyDoneError):
                assert not self.has_asked, "it left though others count on it for the next step"
            except BaseException as error:  # noqa: BLE001 - shown by the main thread
                self.world.errors.append(error)
            finally:
                self.world.gone(self.name)

    def loop(self):
        schedule = self.world.schedule
        job = job_of(schedule, lambda: self.die_at("before_forward"))
        settings = Settings(
            run="sim", worker=self.name, hash_every=1, checkpoints=self.world.folder, checkpoint_s=1e-9
        )
        reporter = MemoryReporter(None, world=self.world)
        return Loop(
            job=job,
            settings=settings,
            records=self.records,
            connect=self.connect,
            reporter=reporter,
            drain=self.drain,
            clock=lambda: 0.0,
            sleep=lambda _s: None,
        )

    def connect(self, step, load, save):
        self.step, self.load, self.save = step, load, save
        return self

    def die_at(self, point):
        if self.world.deaths.get(self.name) == point:
            raise KilledError

    def begin(self, *, leaving):  # noqa: ARG002  each worker has an instance of its own
        self.answer, self.has_asked = None, False
        self.world.arrive(self)
        self.world.baton.wait_for(lambda: self.answer is not None)
        member, heal, lost = self.answer
        self.die_at("while_serving")
        if lost:
            self.world.waiting.add(self.name)
            self.world.outcome = self.world.outcome or dict.fromkeys(self.world.members, False)
            self.world.baton.notify_all()
            return None
        if heal is not None:
            self.load(heal)
            self.step = heal["step"]
            return StepPlace(rank=member.rank, size=member.size, quorum=member.quorum, healed=True)
        return member

    def ask(self, *, leaving):  # noqa: ARG002
        self.has_asked = True
        self.die_at("after_ask")

    def depart(self):
        pass

    def reset(self):
        self.step = 0

    def allreduce(self, values):
        self.world.sent.setdefault(self.name, []).append(values)

    def wait(self, limit_s):
        del limit_s
        self.world.waiting.add(self.name)
        self.world.settle()
        self.world.baton.wait_for(lambda: self.name in self.world.outcome)
        self.die_at("in_sum")
        self.die_at("torn_sum")
        self.die_at("after_sum")
        return self.world.outcome[self.name]

    def commit(self, *, agreed):
        self.step += agreed
        if agreed:
            self.die_at("after_commit")
        return agreed

    def close(self):
        pass


def alone(schedule):
    """Train as one fixed worker and return its records."""
    records = ListRecords(path=None, run="sim", worker="alone")
    loop = Loop(
        job=job_of(schedule),
        settings=Settings(run="sim", hash_every=1),
        records=records,
        connect=lambda step, _load, _save: Solo(step),
        reporter=LedgerReporter(None),
    )
    loop.run()
    return [record for record in records.kept if record["record"] == "step"]
