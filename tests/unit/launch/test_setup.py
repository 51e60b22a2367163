"""The set-up of an instance before its workload: commands, then the environment, of a peer or built."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dlcloud.launch.setup import (
    CPU_INDEX,
    EnvironmentPeer,
    commands_digest,
    environment_key,
    name_failure,
    packages_of,
    prepare,
    requirements_on,
)
from dlcloud.model.errors import RemoteCommandError, UnreachableError
from dlcloud.model.events import Info, StageStarted, Warned
from dlcloud.model.instance import Accelerator
from dlcloud.model.remote import Endpoint
from dlcloud.recipe.workload import Setup
from dlcloud.resources.texts import template
from tests.fakes.clock import FakeClock
from tests.fakes.machine import FakeConnection, FakeMachine
from tests.fakes.samples import hardware

REQUIREMENTS = "# pinned\nonnx==1.17.0  # the format\n\nnumpy==2.1.0\n"
BUILT = b'noise\n{"python": "/env/bin/python", "reused": false, "seconds": 3.0}\n'


def connection(machine=None, **other):
    machine = machine or FakeMachine("i-0001", **{"answers": {"environment.py": BUILT}, **other})
    return FakeConnection(machine, Endpoint(instance_id=machine.instance_id, host="198.51.100.1"))


def prepared(to, setup=None, requirements=REQUIREMENTS, peers=()):
    """Prepare an instance; return its Python and the events."""
    events = []
    python = prepare(to, setup or Setup(), requirements, clock=FakeClock(), emit=events.append, peers=peers)
    return python, events


def test_the_environment_is_keyed_by_its_packages():
    key = environment_key(REQUIREMENTS)
    assert key == environment_key("numpy==2.1.0\nonnx==1.17.0\n")
    assert key != environment_key("numpy==2.1.0\n")
    assert len(key) == 16
    assert packages_of(REQUIREMENTS) == ["numpy==2.1.0", "onnx==1.17.0"]
    assert packages_of("# none\n") == []
    to = connection()
    assert prepared(to, requirements="# none\n")[0] == "python3", "the instance's own"
    assert to.machine.commands == []


@pytest.mark.parametrize("answer", [b"", b"no json\n", b"[]\n", b'{"reused": true}\n', b"12\n"])
def test_an_answer_that_makes_no_sense_is_an_error(answer):
    with pytest.raises(RemoteCommandError, match=r"i-0001: environment\.py (gave no answer|named no Python)"):
        prepared(connection(answers={"environment.py": answer}))


def test_the_recipes_commands_come_first_and_their_failure_is_raised():
    to = connection(failing={"setup.sh": (1, b"E: no such package")})
    with pytest.raises(
        RemoteCommandError, match=r"setup\.commands ended with status 1:\nE: no such package"
    ) as failed:
        prepared(to, Setup(commands="apt-get install x\n"))
    assert "cat dlcloud/setup.log" in failed.value.hint
    assert to.machine.files["dlcloud/setup.sh"][0] == b"apt-get install x\n"
    assert not any("environment.py" in command for command in to.machine.commands)


def test_commands_that_were_run_before_the_image_was_made_are_not_repeated():
    setup = Setup(commands="apt-get install x\n")
    to = connection(answers={"cat dlcloud/image": commands_digest(setup).encode(), "environment.py": BUILT})
    _, events = prepared(to, setup)
    assert "dlcloud/setup.sh" not in to.machine.files
    assert any("not repeated" in event.message for event in events if isinstance(event, Info))
    other = Setup(commands="apt-get install y\n")
    prepared(to, other)
    assert to.machine.files["dlcloud/setup.sh"][0] == other.commands.encode()


def test_apt_is_made_ready_where_a_command_uses_it():
    to = connection()
    _, events = prepared(to, Setup(commands="sudo apt-get install -qy x\n"))
    _, first, second, *_ = to.machine.commands
    assert "apt.sh" in first
    assert "setup.sh" in second
    assert any(isinstance(event, StageStarted) and "apt's locks" in event.message for event in events)
    to = connection()
    prepared(to, Setup(commands="python3 -m pip install adapt\n"))
    assert not any("apt.sh" in command for command in to.machine.commands)


LOCKED = "echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)'; exit 100"


@pytest.mark.parametrize(
    ("programs", "status", "tries", "errors"),
    [
        (
            {"apt-get": "echo not signed; exit 100", "ls": "exit 0"},
            *(0, 4, ["not signed", "going on with the lists that are there"]),
        ),
        ({"apt-get": LOCKED}, 1, 300 // 50, ["held by process 7 (apt-get)"]),
    ],
    ids=["unsigned", "locked"],
)
def test_a_lock_of_apt_is_waited_for_and_an_unsigned_list_stops_no_set_up(
    tmp_path, programs, status, tries, errors
):
    # apt.sh is run with these programs alone. The clock goes on by 50 s each time it is read.
    date = f"echo x >>{tmp_path}/clock; set -- $(wc -l <{tmp_path}/clock); echo $(($1 * 50))"
    shims = {"sudo": 'exec "$@"', "sleep": "exit 0", "timeout": 'shift; exec "$@"', "date": date, **programs}
    for name, text in shims.items():
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/calls\n{text}\n')
        path.chmod(0o755)
    (tmp_path / "wc").symlink_to("/usr/bin/wc")
    script, environment = template("apt.sh").encode(), {"PATH": str(tmp_path)}
    done = subprocess.run(["/bin/sh"], input=script, env=environment, check=False, capture_output=True)
    assert done.returncode == status
    calls = (tmp_path / "calls").read_text().splitlines()
    assert sum(call.startswith("apt-get") for call in calls) == tries
    assert all(words in done.stderr.decode() for words in errors)


def test_the_output_of_a_failing_set_up_command_comes_back_on_stderr(tmp_path):
    to = connection()
    _, events = prepared(to, Setup(commands="echo fine\necho broken >&2\nfalse\necho never\n"))
    assert any(isinstance(event, StageStarted) and "set-up" in event.message for event in events)
    (tmp_path / "dlcloud").mkdir()
    Path(tmp_path / "dlcloud/setup.sh").write_bytes(to.machine.files["dlcloud/setup.sh"][0])
    done = subprocess.run(
        ["sh", "-c", to.machine.commands[1]], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == b"fine\nbroken\n"
    assert b"never" not in done.stderr
    assert (tmp_path / "dlcloud/setup.log").read_text().startswith("fine\n")


TORCH = "numpy==2.4.6\ntorch==2.13.0\n"
CPU = f"--extra-index-url {CPU_INDEX}\n{TORCH}"


@pytest.fixture
def managed(world):
    gpu = Accelerator(name="A10G", count=1, memory_mib=22888)
    world.cloud.known_hardware |= {
        "c7i.xlarge": hardware(),
        "c7g.xlarge": replace(hardware("c7g.xlarge"), architectures=("arm64",)),
        "g5.xlarge": replace(hardware("g5.xlarge"), accelerator=gpu),
    }
    return world.launcher


@pytest.mark.parametrize(
    ("name", "requirements", "installed"),
    [
        ("c7i.xlarge", TORCH, CPU),
        ("c7g.xlarge", TORCH, CPU),
        ("c7i.xlarge", "onnx==1.23.2\n", "onnx==1.23.2\n"),
        ("g5.xlarge", TORCH, TORCH),
        ("zz9.huge", TORCH, TORCH),
    ],
)
def test_a_type_without_a_gpu_installs_pytorch_without_cuda(managed, name, requirements, installed):
    assert requirements_on(managed, name, requirements) == installed


def test_a_rehearsal_installs_what_this_machine_is_configured_for(managed):
    local = replace(managed, cluster=replace(managed.cluster, cloud="local"))
    assert requirements_on(local, "c7i.xlarge", TORCH) == TORCH


COMMAND = "i-1: `python3 dlcloud/environment.py ab` ended with status 1:\ninstalling numpy==9\n"
RETRY = (
    "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken by "
    "'NewConnectionError(...: Failed to establish a new connection')': /numpy/\n"
)
PIP = """\
ERROR: Ignored the following versions: 2.5.0rc1 Requires-Python >=3.13; 2.5.0 Requires-Python >=3.12
ERROR: Could not find a version that satisfies the requirement {0} (from versions: 1.0, 2.4.6)
ERROR: No matching distribution found for {0}

[notice] A new release of pip is available: 23.2.1 -> 26.3
"""
UV = """\
error: No solution found when resolving dependencies
  cause: Because there is no version of numpy==99.4 and you require numpy==99.4,
         we can conclude that your requirements are unsatisfiable.
"""


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (PIP.format("numpy==99.4"), "the package index has no numpy==99.4"),
        (UV, "the package index has no numpy==99.4"),
        ("Because nosuch was not found in the package registry", "the package index has no nosuch"),
        (PIP.format("numpy==2.5.0"), "numpy==2.5.0 needs Python >=3.12"),
        (5 * RETRY + PIP.format("numpy==1"), "the package index does not answer for numpy==1"),
        ("error: Failed to fetch: `https://index/simple/numpy/`", "the package index does not answer"),
        (
            "Cannot install a==1 and b==2 because these package versions have conflicting dependencies.",
            "a==1 and b==2 need versions of others that exclude each other",
        ),
    ],
)
def test_known_causes_are_one_sentence(output, sentence):
    named = name_failure(RemoteCommandError(COMMAND + output), "i-1")
    assert named.message == f"i-1: the environment was not built: {sentence}"
    assert named.hint


def test_other_causes_keep_their_output_without_the_noise_of_pip():
    output = "WARNING: Retrying (x)\nerror: command 'gcc' failed\n\n[notice] A new release of pip\n"
    named = name_failure(RemoteCommandError(COMMAND + output), "i-1")
    assert named.message == f"{COMMAND}error: command 'gcc' failed"


MISSING = b'{"name": "k-py3.12-x86_64", "system": "glibc-2.39", "complete": false}\n'
REUSED = BUILT.replace(b"false", b"true")
COPIED = b'{"seconds": 2.0, "bytes": 3145728}\n'


def newcomer(missing=MISSING, **other):
    return FakeMachine(
        "i-new", answers={"--find": missing, "fetch": COPIED, "environment.py": REUSED}, **other
    )


def source(name, **other):
    return FakeMachine(name, answers={"serve": b'{"port": 4711}\n'}, **other)


def prepared_beside(to, *sources):
    """Prepare an instance that has peers; return the Python and what is told to the user."""
    peers = [
        EnvironmentPeer(
            instance_id=peer.instance_id, host="10.0.0.7", connect=lambda peer=peer: connection(peer)
        )
        for peer in sources
    ]
    python, events = prepared(connection(to), peers=peers)
    return python, [event for event in events if isinstance(event, Info | Warned)]


def order_of(of, verb):
    """Return what a program was sent, which is nowhere in its command line."""
    (command,) = [command for command in of.commands if verb in command]
    order = json.loads(of.stdin[command])
    assert not any(str(value) in command for name, value in order.items() if name != "port")
    return order


def test_the_environment_comes_from_a_peer():
    to, peer = newcomer(), source("i-old")
    python, messages = prepared_beside(to, peer)
    assert python == "/env/bin/python"
    assert "has the environment of i-old: 3 MiB in 2.0 s" in messages[0].message
    offered, fetched = order_of(peer, "serve"), order_of(to, "fetch")
    assert offered["system"] == "glibc-2.39"
    assert fetched["port"] == 4711
    assert (offered["key"], offered["host"]) == (fetched["key"], "10.0.0.7")
    assert len(offered["key"]) == 64
    prepared_beside(other := newcomer(), peer)
    assert order_of(other, "fetch")["key"] != fetched["key"]
    asked = len(peer.commands)
    _, messages = prepared_beside(newcomer(missing=MISSING.replace(b"false", b"true")), peer)
    assert len(peer.commands) == asked, "it is there"
    assert "used again" in messages[0].message


def test_the_next_peer_is_asked_where_one_fails():
    first, second = source("i-one", failing={"serve": (1, b"there is no environment")}), source("i-two")
    _, messages = prepared_beside(newcomer(), first, second)
    assert [type(message) for message in messages[:1]] == [Info]
    assert "of i-two" in messages[0].message


@pytest.mark.parametrize(
    ("to", "peer"),
    [
        (newcomer(), source("i-old", failing={"serve": (1, b"its system is glibc-2.35")})),
        (newcomer(failing={"fetch": (1, b"the peer closed the connection")}), source("i-old")),
        (newcomer(), FakeMachine("i-old")),
        (newcomer(), source("i-old", gone=True)),
    ],
    ids=["refuses", "torn", "no answer", "gone"],
)
def test_without_a_peer_that_gives_it_it_is_built_with_a_warning(to, peer):
    python, messages = prepared_beside(to, peer)
    assert python == "/env/bin/python"
    assert isinstance(messages[0], Warned)
    assert "i-old does not give the environment" in messages[0].message
    assert "it is built from the package index" in messages[0].message
    with pytest.raises(UnreachableError):
        prepared_beside(newcomer(gone=True), peer)
