"""A controller of an elastic run over workers and a launcher that follow scripts."""

from dataclasses import replace

from dlcloud.analysis.result import RunState
from dlcloud.elastic.agents import AgentExited, ReportsReceived
from dlcloud.elastic.controller import Controller, Inbox, TrainingControl
from dlcloud.elastic.failover import require_coordinator
from dlcloud.elastic.registry import TrainingRegistry, parse_reports
from dlcloud.elastic.size_scaler import SizeScaler
from dlcloud.launch.launcher import LaunchedMembers
from dlcloud.model.errors import RemoteCommandError
from dlcloud.model.instance import Market
from dlcloud.trainer.records import EventName
from tests.fakes.clock import FakeClock
from tests.fakes.samples import RECIPE, member, plan, recipe, run

TRAINS = RECIPE.replace("count: 2", "count: {min: 1, max: 3}\n  market: spot\n  on_demand_base: 1").replace(
    "benchmark: quantization", "command: python3 train.py\n  elastic: {}"
)


FIRST = [member(0, Market.ON_DEMAND), member(1), member(2)]


def step(number, size=3):
    return {"record": "step", "step": number, "loss": 1.5, "world_size": size}


def event(name, **other):
    return {"record": "event", "event": name, "cause": "a cause", **other}


DONE = event(EventName.DONE, step=9)


class FakeAgents:
    """Agents that report what a script says, in turn, as they are served."""

    has_taken_over = False

    def __init__(self, script, stored, registry, post):
        self.script, self.kept, self.registry, self.post = script, stored, registry, post
        self.served, self.drained, self.informed, self.forgotten = [], [], [], []
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
        name, coordinator = member.instance.instance_id, self.registry.coordinator
        self.minimums.append((name, coordinator.minimum))
        self.informed.append((name, coordinator.instance_id, coordinator.least))
        for item in self.script.get(f"{name} informed {coordinator.instance_id} {coordinator.least}", []):
            self.post(item)
        return name in self.served

    def forget_peer(self, name):
        self.forgotten.append(name)

    def remind(self, member):
        self.reminded.append(member.instance.instance_id)

    def error_of(self, failed):
        return RemoteCommandError(f"sample failed on {failed.instance_id}")


class FakeLauncher:
    """A launcher of a world: it plans for all that a decision requests, and launches what the world gives."""

    def __init__(self, world, text):
        self.world, self.text, self.clock, self.emit = world, text, world.clock, world._emit

    def reconcile(self):
        return []

    def plan(self, recipe, *, cidrs, size, members):  # noqa: ARG002  the launcher's
        return replace(plan(self.text), max_count=size)

    def grow(self, planned, *, connected):
        return self.world.grow(planned, connected)

    def shrink(self, members):
        self.world.end(members)


class World:
    """A controller over fakes; instances that are launched are numbered from 3 on."""

    def __init__(
        self, script, *, answers=(), target=3, stored=None, launches=Market.SPOT, text=TRAINS, restored=0
    ):
        self.answers, self.asked, self.ended, self.events = list(answers), [], [], []
        self.launched, self.launches = 0, launches
        self.clock, self.emit, self.target = FakeClock(), self.events.append, lambda: target
        self.registry, inbox, values = TrainingRegistry(), Inbox(), recipe(text)
        self.workers = FakeAgents(script, stored or {}, self.registry, inbox.put)
        self.scaler = SizeScaler(
            size=self._size,
            instances=values.instances,
            registry=self.registry,
            clock=self.clock,
            emit=self._emit,
        )
        self.controller = Controller(
            launcher=FakeLauncher(self, text),
            recipe=values,
            plan=plan(text),
            registry=self.registry,
            agents=self.workers,
            scaler=self.scaler,
            inbox=inbox,
            control=TrainingControl(),
            restored=restored,
        )

    # A test may replace what these call.

    def _emit(self, event):
        self.emit(event)

    def _size(self):
        return self.target()

    def end(self, members):
        self.ended.extend(member.instance.instance_id for member in members)

    def grow(self, planned, connected):
        count = planned.max_count
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
    return AgentExited(instance_id=name, run=run(instance_id=name, exit_status=status, state=state))
