"""A run, whatever happens to its connection: each record once, no program twice, and an honest end."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.launch.managed import ManagedCluster
from dlcloud.launch.remote_jobs import log_tail
from dlcloud.model.cluster import ClusterState, Member
from dlcloud.model.errors import (
    CloudError,
    InstanceError,
    LostInstanceError,
    PartialError,
    RemoteCommandError,
)
from dlcloud.model.events import Warned
from dlcloud.model.instance import Market
from dlcloud.runs.nodes import NodesRunner
from dlcloud.runs.program import RunProgram
from dlcloud.runs.replacement import Replacements
from dlcloud.runs.run import Runner
from dlcloud.store.clusters import INTERRUPTION, Clusters
from dlcloud.store.database import Database
from dlcloud.store.home import Paths, Store
from dlcloud.store.measurements import Measurements
from dlcloud.store.runs import Runs
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import Failure, FakeCloud
from tests.fakes.machine import GONE, FakeDial, FakeMachine, Job
from tests.fakes.samples import PRICE_DATE, RECIPE, cluster, instance, price, recipe, request, run

RECORDS = [
    {"record": "start", "hardware": {"cpu_model": "Xeon"}},
    {"record": "progress", "message": "warming up", "done": 1, "total": 4, "remaining_s": 30.0},
    {"record": "sample", "value": 1.5},
    {"record": "failure", "case": "vgg16", "setting": "int8", "message": "out of memory"},
    {"record": "result", "case": "vgg16", "setting": "fp32", "metrics": {}},
    {"record": "end", "ok": True},
]
CONTENT = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
PROGRAM = RunProgram(
    name="quantization",
    arguments=("--network", "tiny"),
    requirements="onnx==1\n",
    package=Path("p"),
    files=None,
)
ENVIRONMENT = b'{"python": "/env/bin/python", "reused": false, "seconds": 1.0}\n'


def machine(instance_id="i-0001", **other):
    job = other.pop("job", Job(records=CONTENT))
    return FakeMachine(instance_id, job=job, answers={"environment.py": ENVIRONMENT}, **other)


class World:
    """A store, a home and instances, over which runners come and go as commands do."""

    def __init__(self, folder, *machines):
        self.database = Database(folder / "store.sqlite")
        self.clusters = Clusters(self.database)
        self.clusters.add(cluster())
        self.runs = Runs(self.database)
        self.paths = Paths(folder)
        self.clock = FakeClock()
        self.machines = machines
        self.dial = FakeDial(*machines, clock=self.clock)
        self.events = []
        self.members = [
            Member(
                instance=instance(machine.instance_id, host=f"198.51.100.{number}"),
                hourly_usd=price().hourly_usd,
                price_source="bundled table",
                price_as_of=PRICE_DATE,
            )
            for number, machine in enumerate(machines, start=1)
        ]

        self.cloud = FakeCloud(self.clock)
        if machines:
            self.cloud.instances.launch(request(count=len(machines)))

    def runner(self, program=PROGRAM, text=None, dial=None, *, fresh=False):
        managed = ManagedCluster(
            cluster=cluster(),
            cloud=self.cloud,
            store=Store(clusters=self.clusters, runs=self.runs, paths=self.paths),
            dialer=dial or self.dial,
            clock=self.clock,
            emit=self.events.append,
        )
        return Runner(
            managed=managed,
            recipe=recipe(text) if text else recipe(),
            program=program,
            image_id="ami-0123",
            fresh=fresh,
        )

    def stored(self):
        return [(run.state, run.exit_status) for run in self.runs.all()]

    def lines(self, run):
        return {kind: self.runs.lines(run.run_id, kind) for kind in ("start", "sample", "result", "end")}


@pytest.fixture
def world(tmp_path):
    made = []

    def of(*machines):
        made.append(World(tmp_path, *machines))
        return made[0]

    yield of
    for machine in made:
        machine.database.close()


ONCE = {
    kind: [json.dumps(record) for record in RECORDS if record["record"] == kind]
    for kind in ("start", "sample", "result", "end")
}


def test_a_run_stores_what_its_program_reported_and_how_it_ended(world):
    one = machine()
    there = world(one)
    (run,) = there.runner().run_all(there.members)
    assert there.runs.all() == [run]
    assert (run.state, run.exit_status, run.instance_type, run.image_id) == (
        RunState.DONE,
        0,
        "c7i.xlarge",
        "ami-0123",
    )
    assert run.hourly_usd == price().hourly_usd
    assert run.ended_at == there.clock.now()
    assert there.lines(run) == ONCE
    assert there.paths.run_log(run.run_id).read_bytes() == b"a line of log\n"
    assert (there.paths.run(run.run_id) / "records.jsonl").read_bytes() == CONTENT


@pytest.mark.parametrize("breaks", [[0], [1], [60, 3], [len(CONTENT) - 1], [100, 0, 250, 1], [len(CONTENT)]])
def test_records_are_stored_once_though_the_connection_breaks_anywhere(world, breaks):
    one = machine(breaks=list(breaks))
    there = world(one)
    (run,) = there.runner().run_all(there.members)
    assert there.lines(run) == ONCE
    assert len(one.read_from) == len(breaks) + 1
    assert all(start == 0 or CONTENT[start - 1 : start] == b"\n" for start in one.read_from)
    assert sum(
        isinstance(event, Warned) and "reconnecting" in event.message for event in there.events
    ) == len(breaks)
    assert len(one.started) == 1


def test_a_connection_that_breaks_at_the_end_of_the_cluster_is_no_warning(world):
    there = world(machine(breaks=[60]))
    there.clusters.set_state(cluster().cluster_id, ClusterState.STOPPING)
    there.runner().run_all(there.members)
    assert not [event for event in there.events if "reconnecting" in getattr(event, "message", "")]


def test_a_terminated_instance_loses_the_run_but_not_its_records(world):
    reported = CONTENT.index(b'{"record": "result"')
    one = machine(breaks=[reported + 5, GONE])
    there = world(one)
    with pytest.raises(InstanceError, match=r"i-0001 is gone; what .* had reported is stored"):
        there.runner().run_all(there.members)
    assert there.stored() == [(RunState.LOST, None)]
    (run,) = there.runs.all()
    assert there.lines(run) == ONCE | {"result": [], "end": []}
    assert run.ended_at == there.clock.now()
    assert 60 <= there.clock.monotonic() < 120


def test_a_cluster_that_is_terminated_was_not_interrupted_and_gets_no_replacement(world):
    there = world(machine())
    runner = there.runner()
    runner.replacements = Replacements(
        there.members, launch=lambda *_: pytest.fail("launched"), clock=there.clock, emit=there.events.append
    )
    there.clusters.set_state("c0ffee", ClusterState.STOPPING)
    there.runs.add(run("lost", instance_id="i-0001"))
    with pytest.raises(LostInstanceError, match="it is gone"):
        runner.replace(there.members[0], LostInstanceError("it is gone"))
    assert there.events == []
    assert there.clusters.intents("c0ffee", INTERRUPTION) == []


def test_a_run_outlives_a_time_without_any_network(world):
    one = machine(breaks=[100])
    there = world(one)
    there.cloud.failures += [
        Failure("instances.find", CloudError("AWS cannot be reached"), number) for number in (1, 2)
    ]

    class Outage(FakeDial):
        def dial(self, endpoint, *, wait_s=0.0):
            one.gone = len(self.dialled) in (2, 3)
            return super().dial(endpoint, wait_s=wait_s)

    (run,) = there.runner(dial=Outage(one, clock=there.clock)).run_all(there.members)
    assert run.state is RunState.DONE
    assert there.lines(run) == ONCE


def test_a_failed_program_is_reported_with_the_end_of_its_log(world):
    log = b"".join(b"line %d\n" % number for number in range(40)) + b"ValueError: no such network\n"
    one = machine(job=Job(records=CONTENT, exit_status=3, log=log))
    there = world(one)
    with pytest.raises(RemoteCommandError) as caught:
        there.runner().run_all(there.members)
    assert "i-0001: quantization ended with status 3" in caught.value.message
    assert caught.value.message.endswith("ValueError: no such network")
    assert "line 39" in caught.value.message
    assert "line 5\n" not in caught.value.message
    (run,) = there.runs.all()
    assert run.run_id in caught.value.hint
    assert (run.state, run.exit_status) == (RunState.FAILED, 3)
    assert there.lines(run) == ONCE


def test_a_program_whose_supervisor_is_lost_has_failed_without_a_status(world):
    one = machine(job=Job(records=CONTENT, state="lost", exit_status=None))
    there = world(one)
    with pytest.raises(RemoteCommandError):
        there.runner().run_all(there.members)
    assert there.stored() == [(RunState.FAILED, None)]


class Killed(BaseException):
    """The process of the runner ends here."""


class DyingDial(FakeDial):
    """Dials until a number of times is reached; then the command is killed."""

    def __init__(self, limit, *machines):
        super().__init__(*machines)
        self.limit = limit

    def dial(self, endpoint, *, wait_s=0.0):
        if len(self.dialled) == self.limit:
            raise Killed
        return super().dial(endpoint, wait_s=wait_s)


def test_a_run_that_was_cut_off_is_followed_and_not_started_again(world):
    one = machine(breaks=[200])
    there = world(one)
    # The first connection prepares and starts, the second is followed, the third is never made.
    with pytest.raises(BaseException):  # noqa: B017, PT011  as a process dies
        there.runner(dial=DyingDial(2, one))._run(there.members[0])
    assert there.stored() == [(RunState.RUNNING, None)]
    (before,) = there.runs.all()
    (run,) = there.runner().run_all(there.members)
    assert run.run_id == before.run_id
    assert len(one.started) == 1
    assert len(one.trees) == 1
    assert there.lines(run) == ONCE
    assert there.stored() == [(RunState.DONE, 0)]


def test_a_run_that_ended_is_not_followed_by_the_next_one(world):
    one = machine()
    there = world(one)
    (first,) = there.runner().run_all(there.members)
    (second,) = there.runner().run_all(there.members)
    assert first.run_id != second.run_id
    assert len(one.started) == 2


def test_an_ended_run_is_stored_though_its_files_are_lost(world):
    one = machine()

    class GoneAfterwards(FakeDial):
        def dial(self, endpoint, *, wait_s=0.0):
            one.gone = one.gone or len(self.dialled) == 2
            return super().dial(endpoint, wait_s=wait_s)

    there = world(one)
    (run,) = there.runner(dial=GoneAfterwards(one)).run_all(there.members)
    assert (run.state, run.exit_status) == (RunState.DONE, 0)
    assert there.stored() == [(RunState.DONE, 0)]
    assert any(isinstance(event, Warned) and "not downloaded" in event.message for event in there.events)


def test_files_asked_for_are_brought_home(world):
    one = machine()
    there = world(one)
    runner = there.runner(text="keep: {files: [model.pt, missing.pt]}\n" + RECIPE)
    one_run = runner._jobs.new_run(
        there.members[0], "quantization", image_id="ami-0123", setup_at=there.clock.now()
    )
    there.runs.add(one_run)
    one.kept[f"dlcloud/runs/{one_run.run_id}/work"] = {"model.pt": b"weights", "other": b"x"}
    (run,) = runner.run_all(there.members)
    assert run.run_id == one_run.run_id
    assert [path.name for path in there.paths.run_files(run.run_id).iterdir()] == ["model.pt"]
    kept = f"1 file(s) downloaded to {there.paths.run_files(run.run_id)}"
    messages = [event.message for event in there.events]
    assert kept in messages
    assert "no file that the run wrote matches missing.pt (keep.files)" in messages


def test_results_for_which_no_folder_can_be_made_stay_on_the_instance(world):
    there = world(machine())
    there.paths.runs.write_text("not a folder")
    runner = there.runner()
    (run,) = runner.run_all(there.members)
    assert run.state is RunState.DONE
    assert "i-0001" in runner.managed.results_left


def test_files_asked_for_that_are_not_there_are_named(world):
    one = machine()
    there = world(one)
    there.runner(text="keep: {files: ['*.pt']}\n" + RECIPE).run_all(there.members)
    warnings = [event.message for event in there.events if isinstance(event, Warned)]
    assert any("no file that the run wrote matches *.pt (keep.files)" in message for message in warnings)


def test_on_many_instances_one_failure_keeps_what_the_others_measured(world):
    machines = [machine("i-0001"), machine("i-0002", job=Job(exit_status=1)), machine("i-0003")]
    there = world(*machines)
    with pytest.raises(PartialError, match="1 of 3 instances failed"):
        there.runner().run_all(there.members)
    assert sorted(there.stored()) == [(RunState.DONE, 0), (RunState.DONE, 0), (RunState.FAILED, 1)]


def test_the_set_up_of_the_recipe_runs_before_the_program(world):
    one = machine(failing={"setup.sh": (1, b"no such package")})
    there = world(one)
    runner = there.runner(text=RECIPE + "setup: {commands: apt-get install x}\n")
    with pytest.raises(RemoteCommandError, match="no such package"):
        runner.run_all(there.members)
    assert one.started == []
    assert there.runs.all() == []


def test_the_users_files_travel_to_the_work_folder(world, tmp_path):
    one = machine()
    there = world(one)
    (tmp_path / "src" / "__pycache__").mkdir(parents=True)
    (tmp_path / "src" / "train.py").touch()
    (run,) = there.runner(program=replace(PROGRAM, files=tmp_path / "src")).run_all(there.members)
    assert one.sent == [(["train.py"], "dlcloud/files/tree")]
    assert any(
        command.endswith(f"finish dlcloud/files dlcloud/runs/{run.run_id}/work") for command in one.stdin
    )


def test_the_tail_of_a_log(tmp_path):
    assert log_tail(tmp_path / "missing") == ""
    lines = [f"line {number}" for number in range(100)]
    (tmp_path / "log").write_text("\n".join([*lines, *lines[-3:], ""]))
    assert log_tail(tmp_path / "log").splitlines() == lines[-15:]


def test_a_run_is_stored_with_prices_of_both_markets_and_setup_time(world):
    there = world(machine())
    there.cloud.known_prices = [
        price(),
        replace(price(usd="0.07", market=Market.SPOT), zone="us-east-1a"),
        replace(price(usd="0.05", market=Market.SPOT), zone="us-east-1b"),
    ]
    (run,) = there.runner().run_all(there.members)
    quote = Measurements(there.database).market_prices([run.run_id])[run.run_id]
    assert (str(quote.on_demand.hourly_usd), str(quote.spot.hourly_usd)) == ("0.1785", "0.07")
    assert run.setup_at <= run.started_at
    assert there.runs.all() == [run]


def test_prices_that_cannot_be_had_stop_no_run(world):
    there = world(machine())
    there.cloud.failures = [Failure("prices.find", CloudError("denied"))]
    (run,) = there.runner().run_all(there.members)
    assert run.state is RunState.DONE
    assert Measurements(there.database).market_prices([run.run_id]) == {}


CASE = {"record": "case", "case": "vgg16", "settings": ["fp32"], "complete": True, "host": "i-0001"}
WITH_CASE = "".join(json.dumps(record) + "\n" for record in [*RECORDS[:1], RECORDS[4], CASE]).encode()


def test_results_of_an_interrupted_run_are_sent_to_a_new_instance(world):
    first, second = machine(job=Job(records=WITH_CASE)), machine("i-0002")
    first.breaks = [len(WITH_CASE), GONE]
    there = world(first, second)
    with pytest.raises(InstanceError):
        there.runner().run_all(there.members[:1])
    (new,) = there.runner().run_all(there.members[1:])
    folder = f"dlcloud/runs/{new.run_id}"
    sent, _ = second.files[f"{folder}/earlier.jsonl"]
    assert sent == WITH_CASE
    command, _ = second.files[f"{folder}/command"]
    assert b"--host i-0002 --resume earlier.jsonl --network tiny" in command
    assert any("1 case(s) were measured before" in event.message for event in there.events)


def test_nothing_is_sent_along_where_all_is_to_be_measured_anew(world):
    first, second = machine(job=Job(records=WITH_CASE)), machine("i-0002")
    first.breaks = [len(WITH_CASE), GONE]
    there = world(first, second)
    with pytest.raises(InstanceError):
        there.runner().run_all(there.members[:1])
    (new,) = there.runner(fresh=True).run_all(there.members[1:])
    assert f"dlcloud/runs/{new.run_id}/earlier.jsonl" not in second.files


JOB = RECIPE.replace("  benchmark: quantization", "  nodes: all\n  command: ./job")


def test_the_nodes_of_one_job_may_reach_each_other(world):
    of = world(machine("i-0001"), machine("i-0002"))
    of.cloud.network.create_group(cluster().cluster_id, cluster().tags, vpc_id="vpc-1")
    program = replace(PROGRAM, name="command", arguments=("--run", "./job", "--case", "job"))
    NodesRunner(of.runner(program, text=JOB)).run(of.members)
    assert any(group == peer for group, peer in of.cloud.rules)


def test_instances_that_share_a_folder_of_data_may_reach_each_other(world):
    there = world(machine("i-0001"), machine("i-0002"))
    data = RECIPE + "data: [{from: ./data, to: data}]\n"
    runner = there.runner(text=data.replace("benchmark: quantization", "command: python3 train.py"))
    there.cloud.network.create_group(cluster().cluster_id, cluster().tags)
    runner.expect(1)
    assert there.cloud.calls["network.allow_peers"] == 0
    runner.expect(2)
    assert there.cloud.calls["network.allow_peers"] == 1
