"""Workers by their records, incidents of a rehearsal, commands and control files of agents."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from dlcloud.elastic.agents import Coordinator, control_file, program_of
from dlcloud.elastic.registry import TrainingRegistry, parse_reports
from dlcloud.elastic.rehearsal import Rehearsal
from dlcloud.model.cluster import Member
from dlcloud.model.errors import InstanceGoneError, RecipeError
from dlcloud.model.events import Warned
from dlcloud.recipe.recipe import Incident, read_recipe
from dlcloud.scheduling.scaling import InstanceStage, TrainingInstance
from dlcloud.trainer.instance.options import parse
from dlcloud.trainer.records import EventName
from dlcloud.trainer.settings import parse_control
from tests.fakes.samples import RECIPE, instance, recipe

TRAINS = RECIPE.replace("benchmark: quantization", "command: python3 train.py --lr '0.1 2'\n  elastic: {}")


def registry():
    made = TrainingRegistry()
    made.add(Member(instance=instance("i-1"), hourly_usd=None, price_source="", price_as_of=None))
    return made


def observe(made, name, *records):
    for report in parse_reports(name, records):
        made.observe(name, report)


@pytest.mark.parametrize(
    ("records", "state"),
    [
        ([], InstanceStage.ARRIVING),
        ([{"record": "event", "event": EventName.JOINED}], InstanceStage.TRAINING),
        ([{"record": "step", "step": 3}], InstanceStage.TRAINING),
        ([{"record": "event", "event": EventName.REBALANCE}], InstanceStage.AT_RISK),
        ([{"record": "event", "event": EventName.DRAIN}], InstanceStage.LEAVING),
        ([{"record": "event", "event": ["x"]}, {"record": "step"}, {}], InstanceStage.ARRIVING),
    ],
)
def test_the_state_of_a_worker_follows_its_records(records, state):
    made = registry()
    observe(made, "i-1", *records)
    assert made.state("i-1") is state


def test_an_interrupted_worker_trains_on_until_it_drains():
    made = registry()
    observe(made, "i-1", {"record": "step", "step": 3})
    made.mark_interrupted("i-1")
    observe(made, "i-1", {"record": "step", "step": 4}, {"record": "event", "event": EventName.REBALANCE})
    assert (made.state("i-1"), made.step_held("i-1")) == (InstanceStage.INTERRUPTED, 4)
    observe(made, "i-1", {"record": "event", "event": EventName.DRAIN})
    assert (made.state("i-1"), made.is_interrupted("i-1")) == (InstanceStage.LEAVING, True)


def test_the_newest_step_counts_whichever_worker_reports_it():
    made = registry()
    observe(made, "i-1", {"record": "start", "settings": {"steps": 90}})
    observe(made, "i-1", {"record": "step", "step": 5, "loss": 0.5, "world_size": 3})
    observe(made, "i-1", {"record": "step", "step": 4, "loss": 0.9, "world_size": 2})
    assert (made.step, made.steps, made.loss, made.world_size, made.done) == (5, 90, 0.5, 3, False)
    observe(made, "i-9", {"record": "event", "event": EventName.DONE})
    assert made.done


def test_a_step_that_the_coordinator_recorded_for_another_is_not_its_own():
    made = registry()
    observe(made, "i-1", {"record": "step", "step": 7, "worker": "i-2"})
    assert (made.step, made.step_held("i-1"), made.state("i-1")) == (7, None, InstanceStage.ARRIVING)
    observe(made, "i-1", {"record": "step", "step": 8, "worker": "i-1.3"})
    assert (made.step_held("i-1"), made.state("i-1")) == (8, InstanceStage.TRAINING)


@pytest.mark.parametrize("event", [EventName.HOLD, EventName.NO_QUORUM])
def test_what_the_workers_wait_for_is_known_until_the_next_step(event):
    made = registry()
    observe(made, "i-1", {"record": "step", "step": 5})
    observe(made, "i-1", {"record": "event", "event": event, "cause": "1 of 2 instances needed"})
    assert made.waiting == "1 of 2 instances needed"
    observe(made, "i-1", {"record": "step", "step": 5})
    assert made.waiting
    observe(made, "i-1", {"record": "step", "step": 6})
    assert made.waiting == ""


class FaultInjector:
    def __init__(self):
        self.done = []

        self.gone = set()

    def interrupt(self, instance_id, grace_s):
        if instance_id in self.gone:
            raise InstanceGoneError("no such instance is pending or running")
        self.done.append((instance_id, grace_s))

    def set_capacity(self, instance_type, count):
        self.done.append((instance_type, count))


def trains(name):
    return TrainingInstance(member=Member(instance=instance(name)), state=InstanceStage.TRAINING)


def test_incidents_happen_once_at_their_times():
    faults, events = FaultInjector(), []
    incidents = [
        Incident(after=5, interrupt=1, grace=10),
        Incident(after=6, kill=0),
        Incident(after=6, capacity=0),
        Incident(after=7, kill=5),
        Incident(after=8, kill="coordinator"),
    ]
    rehearsal = Rehearsal(incidents=incidents, types=["c7i.xlarge"], faults=faults, emit=events.append)
    both = [trains("i-0"), trains("i-1"), trains("i-2")]
    rehearsal.start_due(3.0, both, "i-0")  # no step is taken yet
    rehearsal.begin(10.0)
    rehearsal.begin(14.0)
    rehearsal.start_due(14.9, both, "i-0")
    assert faults.done == []
    rehearsal.start_due(15.0, both, "i-0")
    rehearsal.start_due(16.5, both, "i-0")
    assert faults.done == [("i-2", 10), ("i-1", 0.0), ("c7i.xlarge", 0)]
    rehearsal.start_due(17.5, both[:2], "i-0")
    assert isinstance(events[-1], Warned)
    assert len(faults.done) == 3
    rehearsal.start_due(19.0, both[:2], "i-0")
    assert faults.done[3:] == [("i-0", 0.0)]


def test_an_incident_of_an_instance_that_is_gone_is_skipped_with_a_line():
    faults, events = FaultInjector(), []
    faults.gone.add("i-1")
    incidents = [Incident(after=0, interrupt=0), Incident(after=1, kill="coordinator")]
    rehearsal = Rehearsal(incidents=incidents, types=["c7i.xlarge"], faults=faults, emit=events.append)
    rehearsal.begin(10.0)
    rehearsal.start_due(11.0, [trains("i-0"), trains("i-1")], "i-0")
    assert faults.done == [("i-0", 0.0)]
    assert [(event.instance_id, event.message) for event in events if isinstance(event, Warned)] == [
        ("i-1", "rehearsal: already terminated; this incident is skipped")
    ]


FIRST = Member(
    instance=replace(instance("i-0"), private_host="10.0.0.1"),
    hourly_usd=None,
    price_source="",
    price_as_of=None,
)
FIRST_COORDINATOR = Coordinator(member=FIRST, generation=1, step=12, least=11, minimum=2)


def agent(worker="i-1"):
    program = program_of(recipe(TRAINS), Path(), run="c0ffee")
    return program.agent("/an env/bin/python", worker=worker, coordinator=FIRST_COORDINATOR)


def test_a_change_of_command_or_files_makes_another_program(tmp_path):
    (tmp_path / "src").mkdir()
    script = tmp_path / "src" / "train.py"
    script.write_text("epochs = 3")
    text = TRAINS.replace("  elastic: {}", "  files: ./src\n  elastic: {}")

    def digest(text=text):
        return program_of(recipe(text), tmp_path, run="c0ffee").digest

    first = digest()
    assert digest() == digest(text.replace("count: 2", "count: 9")) == first
    assert digest(text.replace("0.1 2", "0.1 3")) != first
    script.write_text("epochs = 9")
    assert digest() != first


def test_the_agent_parses_its_command():
    words = shlex.split(agent("i-0").removeprefix("PYTHONPATH=.. exec "))
    assert words[:3] == ["/an env/bin/python", "-m", "trainer.agent"]
    options = parse(words[3:], {})
    assert (options.run, options.worker, options.coordinator, options.port) == (
        "c0ffee",
        "i-0",
        "10.0.0.1",
        29510,
    )
    assert (options.lighthouse, options.step, options.minimum, options.checkpoint_s, options.margin_s) == (
        True,
        12,
        1,  # of the lighthouse: what a step needs is in the control file, where it can follow a resize
        60.0,
        60.0,
    )
    assert options.last_s == 5.0
    assert options.command == ("sh", "-c", "exec python3 train.py --lr '0.1 2'")
    assert "--lighthouse" not in agent()


def test_an_agent_in_a_container_never_stands_by():
    assert "--successor" in agent()
    boxed = recipe(TRAINS + "setup: {image: own/train:1}\n")
    program = program_of(boxed, Path(), run="c0ffee")
    assert program.requirements == ""
    assert "--successor" not in program.agent("python3", worker="i-1", coordinator=FIRST_COORDINATOR)


def test_an_instance_has_as_many_workers_as_the_recipe_says():
    assert "--workers" not in agent()
    made = recipe(TRAINS.replace("elastic: {}", "elastic: {workers_per_instance: 8}"))
    program = program_of(made, Path(), run="c0ffee")
    words = shlex.split(program.agent("python3", worker="i-1", coordinator=FIRST_COORDINATOR))
    assert parse(words[words.index("trainer.agent") + 1 :], {}).workers == 8
    assert program.digest == program_of(recipe(TRAINS), Path(), run="c0ffee").digest, "it trains the same"


def test_the_control_file_is_one_that_the_trainer_reads():
    files = [control_file(FIRST_COORDINATOR, worker=name, drain="x") for name in ("i-0", "i-1")]
    first, other = [parse_control(content.decode()) for content in files]
    assert (other.minimum, other.drain, other.generation) == (2, "x", 1)
    assert (other.coordinator, other.step, other.least) == ("10.0.0.1:29510", 12, 11)
    assert (first.coordinates, other.coordinates) == (True, False)


def test_the_state_that_an_instance_holds():
    made = registry()
    assert made.step_held("i-1") is None
    observe(made, "i-1", {"record": "step", "step": 5, "generation": 2})
    assert (made.step_held("i-1"), made.generation) == (5, 2)
    observe(made, "i-1", {"record": "event", "event": EventName.KILLED})
    assert made.step_held("i-1") == 0
    observe(made, "i-1", {"record": "event", "event": EventName.RESUMED, "step": 3})
    assert made.step_held("i-1") == 3


def test_missing_files_are_reported_before_anything_is_launched(tmp_path):
    text = TRAINS.replace("elastic: {}", "elastic: {}\n  files: src")
    with pytest.raises(RecipeError, match="does not exist"):
        program_of(recipe(text), tmp_path, run="c0ffee")
    with pytest.raises(RecipeError, match="not an elastic one"):
        program_of(recipe(), tmp_path, run="c0ffee")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TRAINS.replace("elastic: {}", "elastic: {}\n  throughput: 'a (b)'"), "a command that is measured"),
        (TRAINS.replace("count: 2", "count: 2\n  market: spot"), "needs on_demand_base: 1"),
        (TRAINS + "rehearsal: [{after: 1, kill: 0}]\n", "belongs to cloud: local"),
        (TRAINS + "cloud: local\nrehearsal: [{after: 1, kill: 0, capacity: 1}]\n", "name one of interrupt"),
        (RECIPE + "cloud: local\nrehearsal: [{after: 1, kill: 0}]\n", "an elastic workload"),
        (RECIPE + "  elastic: {}\n", "elastic belongs to a command"),
    ],
)
def test_a_recipe_that_cannot_be_elastic_is_refused(text, says):
    with pytest.raises(RecipeError, match=says):
        read_recipe(text, "recipe.yaml")
