"""A controller of an elastic run over workers and a launcher that follow scripts."""

from datetime import timedelta

from dlcloud.elastic.controller import Controller, Inbox
from dlcloud.elastic.departures import Departures
from dlcloud.elastic.failover import CoordinatorFailover, require_coordinator
from dlcloud.elastic.failures import FailureCount
from dlcloud.elastic.progress import TrainingProgress
from dlcloud.elastic.registry import WorkerRegistry
from dlcloud.elastic.reports import parse_reports
from dlcloud.elastic.requests import InstanceRequests
from dlcloud.elastic.size_scaler import SizeScaler
from dlcloud.elastic.workers import ReportsReceived, WorkerExited
from dlcloud.launch.launcher import LaunchedMembers
from dlcloud.model.cluster import Member
from dlcloud.model.errors import RemoteCommandError
from dlcloud.model.instance import Market
from dlcloud.results.result import RunState
from dlcloud.trainer.records import EventName
from tests.fakes.clock import FakeClock
from tests.fakes.samples import RECIPE, THEN, instance, recipe, run

TRAINS = RECIPE.replace("count: 2", "count: {min: 1, max: 3}\n  market: spot\n  on_demand_base: 1").replace(
    "benchmark: quantization", "command: python3 train.py\n  elastic: {}"
)


def member(number, market=Market.SPOT):
    made = instance(f"i-{number}", market=market, launched_at=THEN + timedelta(minutes=number))
    return Member(instance=made, hourly_usd=None, price_source="", price_as_of=None)


FIRST = [member(0, Market.ON_DEMAND), member(1), member(2)]


def step(number, size=3):
    return {"record": "step", "step": number, "loss": 1.5, "world_size": size}


def event(name, **other):
    return {"record": "event", "event": name, "cause": "a cause", **other}


DONE = event(EventName.DONE, step=9)


class FakeWorkers:
    """Workers that report what a script says, in turn, as they are served."""

    has_taken_over = False

    def __init__(self, script, stored, coordinator, post):
        self.script, self.kept, self.coordinator, self.post = script, stored, coordinator, post
        self.served, self.drained, self.informed = [], [], []
        self.minimums, self.reminded = [], []

    def serve(self, member):
        self.served.append(member.instance.instance_id)
        for item in self.script.get(member.instance.instance_id, []):
            self.post(item)

    def read_past(self, member):
        name = member.instance.instance_id
        return parse_reports(name, self.kept.get(name, []))

    def drain(self, member, cause):
        self.drained.append(member.instance.instance_id)
        for item in self.script.get(f"{member.instance.instance_id} {cause}", []):
            self.post(item)

    def write_control(self, member):
        name, coordinator = member.instance.instance_id, self.coordinator()
        self.minimums.append((name, coordinator.minimum))
        self.informed.append((name, coordinator.instance_id, coordinator.least))
        for item in self.script.get(f"{name} informed {coordinator.instance_id} {coordinator.least}", []):
            self.post(item)
        return name in self.served

    def remind(self, member):
        self.reminded.append(member.instance.instance_id)

    def error_of(self, failed):
        return RemoteCommandError(f"sample failed on {failed.instance_id}")


class World:
    """A controller over fakes; instances that are launched are numbered from 3 on."""

    def __init__(
        self, script, *, answers=(), target=3, stored=None, launches=Market.SPOT, text=TRAINS, restored=0
    ):
        self.answers, self.asked, self.ended, self.events = list(answers), [], [], []
        self.launched, self.launches = 0, launches
        self.clock, self.emit, self.target = FakeClock(), self.events.append, lambda: target
        self.registry, inbox, values = WorkerRegistry(), Inbox(), recipe(text)
        self.workers = FakeWorkers(script, stored or {}, lambda: failover.coordinator, inbox.put)
        shared = {"registry": self.registry, "clock": self.clock, "emit": self._emit}
        failover = CoordinatorFailover(
            inform=self._inform,
            touch=self.workers.remind,
            post=inbox.put,
            end=self._end,
            restored=restored,
            **shared,
        )
        self.scaler = SizeScaler(size=self._size, instances=values.instances, **shared)
        self.controller = Controller(
            scaler=self.scaler,
            registry=self.registry,
            workers=self.workers,
            failover=failover,
            departures=Departures(drain=self.workers.drain, end=self._end, **shared),
            requests=InstanceRequests(launch_for=self._launch_for, post=inbox.put, emit=self._emit),
            failures=FailureCount(error_of=self.workers.error_of, emit=self._emit),
            progress=TrainingProgress(**shared),
            inbox=inbox,
            clock=self.clock,
            minimum=values.instances.minimum,
        )

    # A test may replace what these call.

    def _emit(self, event):
        self.emit(event)

    def _end(self, members):
        self.end(members)

    def _inform(self, member):
        return self.workers.write_control(member)

    def _size(self):
        return self.target()

    def _launch_for(self, decision, connected):
        return self.grow(decision, connected)

    def end(self, members):
        self.ended.extend(member.instance.instance_id for member in members)

    def grow(self, decision, connected):
        count = decision.launch
        self.asked.append(count)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        new = [] if answer == 0 else [member(3 + self.launched + n, self.launches) for n in range(count)]
        self.launched += len(new)
        return LaunchedMembers(members=[*(FIRST if connected else []), *new], connections={})

    def go(self, members=FIRST):
        self.controller.run(members, require_coordinator(members, "sample"))
        return self

    @property
    def messages(self):
        return [event.message for event in self.events]

    def end_after(self, event, start):
        """Let the training end an hour after a message; the controller acts once in between."""
        if event.message.startswith(start):
            self.clock.advance(3600)
            for name in ("i-0", "i-2"):
                self.workers.post(reports(name, DONE))
                self.workers.post(ends(name))


def reports(name, *records):
    return ReportsReceived(instance_id=name, reports=parse_reports(name, records))


def ends(name, status=0, state=RunState.DONE):
    return WorkerExited(instance_id=name, run=run(instance_id=name, exit_status=status, state=state))
