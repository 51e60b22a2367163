"""A controller of an elastic run over workers and a launcher that follow scripts."""

from datetime import timedelta

from dlcloud.elastic.controller import Controller
from dlcloud.elastic.workers import RecordsReceived, WorkerExited
from dlcloud.launch.launcher import LaunchedMembers
from dlcloud.model.cluster import Member
from dlcloud.model.errors import RemoteCommandError
from dlcloud.model.instance import Market
from dlcloud.results.result import RunState
from tests.fakes.clock import FakeClock
from tests.fakes.samples import RECIPE, THEN, cluster, instance, recipe, run

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


DONE = event("done", step=9)


class FakeWorkers:
    """Workers that report what a script says, in turn, as they are served."""

    def __init__(self, script, stored):
        self.script, self.kept = script, stored
        self.served, self.drained, self.informed, self.post, self.coordinator = [], [], [], None, None
        self.minimums, self.reminded = [], []

    def serve(self, member):
        self.served.append(member.instance.instance_id)
        for item in self.script.get(member.instance.instance_id, []):
            self.post(item)

    def read_stored(self, member):
        return self.kept.get(member.instance.instance_id, [])

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

    def __init__(self, script, *, answers=(), target=3, stored=None, launches=Market.SPOT, text=TRAINS):
        self.workers = FakeWorkers(script, stored or {})
        self.answers, self.asked, self.ended, self.events = list(answers), [], [], []
        self.launched, self.launches = 0, launches
        self.controller = Controller(
            cluster=cluster(),
            recipe=recipe(text),
            make_workers=self.make_workers,
            grow=self.grow,
            end=lambda members: self.ended.extend(member.instance.instance_id for member in members),
            target=lambda: target,
            clock=FakeClock(),
            emit=self.events.append,
        )

    def make_workers(self, coordinator, post):
        self.workers.post, self.workers.coordinator = post, coordinator
        return self.workers

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
        self.controller.run(members)
        return self

    @property
    def messages(self):
        return [event.message for event in self.events]

    def end_after(self, event, start):
        """Let the training end an hour after a message; the controller acts once in between."""
        if event.message.startswith(start):
            self.controller.clock.advance(3600)
            for name in ("i-0", "i-2"):
                self.workers.post(reports(name, DONE))
                self.workers.post(ends(name))


def reports(name, *records):
    return RecordsReceived(instance_id=name, records=list(records))


def ends(name, status=0, state=RunState.DONE):
    return WorkerExited(instance_id=name, run=run(instance_id=name, exit_status=status, state=state))
