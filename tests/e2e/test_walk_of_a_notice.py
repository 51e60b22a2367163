"""The way from a spot interruption notice to the instance that replaces the interrupted one is short.

Counted are the functions on it, each once: the agent reads the notice from the metadata service and records
it; the thread that follows an instance's records hands it to the controller; this changes the worker's state,
decides, plans, and calls EC2. From there on it goes to the replacement's agent: the instance is reached, a
thread for it sets it up and starts the agent, down to the command that is handed to SSH. There the agent
starts its worker, which fetches the state of a peer and takes its first step.
"""

import itertools
import json
import shutil
import subprocess
import sys
import traceback
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dlcloud.elastic.agents import PACKAGE
from dlcloud.trainer.agent import Agent
from dlcloud.trainer.instance.notices import MetadataClient, SpotStatus
from dlcloud.trainer.instance.options import parse
from dlcloud.trainer.instance.processes import make_workers
from dlcloud.trainer.records import Records
from tests.environments import python_with

ROOT = Path(__file__).parents[2]
FOLDER = f"{ROOT / 'dlcloud'}/"
TO_REQUEST, TO_AGENT, TO_STEP = (35, 14), (42, 15), (56, 20)
"""Functions and files at most."""

CONTROLLER = "elastic/controller.py: run"
DECIDED = (
    "dlcloud.elastic.registry:TrainingRegistry._advance",
    "dlcloud.scheduling.scaling:decide",
    "dlcloud.launch.launcher:make_plan",
)
SET_UP = ("dlcloud.launch.launcher:wait_until_reachable", "dlcloud.elastic.agents:prepare")
RECIPE = """\
name: noticed
cloud: local
instances:
  types: [c7i.xlarge]
  count: {min: 1, max: 2}
  market: spot
  on_demand_base: 1
workload:
  command: python3 walked_worker.py --epochs 12 --delay-ms 30
  files: walked_worker.py
  elastic: {leave_seconds: 1}
keep: {files: [first_step.json]}
rehearsal:
  - {after: 1, interrupt: 0, grace: 4}
"""


class IdleWorker:
    """A worker that does nothing until the notice is recorded."""

    status, is_leaving, has_ended = 0, False, False

    def poll(self, _now):
        pass

    def close(self):
        pass


class WatchedRecords:
    """Keeps the stack of the record of a notice, and lets the worker end then."""

    def __init__(self):
        self.stack, self.worker = [], IdleWorker()

    def event(self, event, _cause, **_values):
        if event.value == "notice":
            self.stack = [(frame.filename, frame.name) for frame in traceback.extract_stack()]
            self.worker.has_ended = True


class WatchedClient(MetadataClient):
    """Answers every request with a notice, and keeps the stack of the request for it."""

    stack = ()

    def _request(self, method, path, _headers):
        if path.endswith("instance-action"):
            type(self).stack = [(frame.filename, frame.name) for frame in traceback.extract_stack()]
            at = datetime.now(UTC) + timedelta(minutes=2)
            return 200, json.dumps({"action": "terminate", "time": at.isoformat()})
        return (200, "token") if method == "PUT" else (404, "")


def in_package(frames):
    return as_steps((path, name) for path, name in frames if path.startswith(FOLDER))


def options_in(folder):
    words = [
        "--run",
        "r",
        "--worker",
        "w",
        "--coordinator",
        "127.0.0.1",
        "--folder",
        str(folder),
        "--",
        "true",
    ]
    return parse(words, {})


@pytest.fixture(scope="module")
def agent_steps(tmp_path_factory):
    """The functions of the agent from the request for a notice to its record."""
    records = WatchedRecords()
    agent = Agent(
        options=options_in(tmp_path_factory.mktemp("agent")),
        records=records,
        workers=[records.worker],
        lighthouse=None,
        fetch_status=WatchedClient().fetch,
        poll_s=0.1,
    )
    agent.run()
    return [*in_package(WatchedClient.stack), *in_package(records.stack)]


@pytest.fixture(scope="module")
def start_steps(tmp_path_factory):
    """The functions of an agent until it starts its worker."""
    folder, stacks = tmp_path_factory.mktemp("agent"), []

    class WatchedProcess(subprocess.Popen):
        def __init__(self, *arguments, **named):
            stacks.append([(frame.filename, frame.name) for frame in traceback.extract_stack()])
            super().__init__(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch, Records(path=None, run="r", worker="w") as records:
        patch.setattr("dlcloud.trainer.instance.processes.subprocess.Popen", WatchedProcess)
        options = options_in(folder)
        agent = Agent(
            options=options,
            records=records,
            workers=make_workers(options, records),
            lighthouse=None,
            fetch_status=SpotStatus,
        )
        assert agent.run() == 0
    return in_package(stacks[0])


@pytest.fixture(scope="module")
def walk(user):
    """The calls of an `up` whose training is interrupted once, and the first step of a newcomer."""
    path = user.home / "walk.json"
    recipe = user.home / "noticed.yaml"
    recipe.write_text(RECIPE)
    shutil.copy(Path(__file__).with_name("walked_worker.py"), user.home)
    python_with(PACKAGE / "requirements" / "elastic.txt")
    walker = replace(
        user,
        command=(sys.executable, str(Path(__file__).with_name("walk.py"))),
        variables={
            "WALK_FILE": str(path),
            "WALK_PROBES": " ".join((*DECIDED, *SET_UP)),
            "PYTHONPATH": str(ROOT),
        },
    )
    walker.run("up", str(recipe))
    first_step = next(user.home.rglob("files/first_step.json"))
    steps = [f"{file}: {name}" for file, name in json.loads(first_step.read_text())]
    return json.loads(path.read_text())["calls"], steps


def as_steps(frames):
    return [f"{path.removeprefix(FOLDER)}: {name}" for path, name in frames]


def steps_from(frames, start):
    steps = as_steps(frames)
    return steps[steps.index(start) :]


@pytest.mark.parametrize(
    ("stops", "most"),
    [
        ((*DECIDED, "RunInstances"), TO_REQUEST),
        ((*DECIDED, "RunInstances", *SET_UP, "start"), TO_AGENT),
        ((*DECIDED, "RunInstances", *SET_UP, "start", "step"), TO_STEP),
    ],
)
def test_from_a_notice_to_its_replacement_it_is_not_far(agent_steps, start_steps, walk, stops, most):
    walk, first_step = walk
    notice = next(number for number, (name, _) in enumerate(walk) if name == "notice")
    stacks = [agent_steps, steps_from(walk[notice][1], "elastic/agents.py: _serve")]
    controller = [
        (name, steps_from(frames, CONTROLLER))
        for name, frames in walk[notice:]
        if name != "notice" and CONTROLLER in as_steps(frames)
    ]
    controller.append(("step", [*start_steps, *first_step]))
    stacks += [next(steps for name, steps in controller if name == stop) for stop in stops]
    steps = dict.fromkeys(itertools.chain.from_iterable(stacks))
    steps = [step for step in steps if not step.startswith("ssh/")]
    files = {step.partition(":")[0] for step in steps}
    listing = "\n".join([f"{len(steps)} functions in {len(files)} files:", *steps])
    assert len(steps) <= most[0], listing
    assert len(files) <= most[1], listing
