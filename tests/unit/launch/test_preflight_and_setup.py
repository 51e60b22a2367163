"""The questions before a launch, and the set-up of an instance before its workload."""

import subprocess
from pathlib import Path

import pytest

from dlcloud.launch.preflight import run_preflight
from dlcloud.launch.setup import commands_digest, environment_key, packages_of, prepare
from dlcloud.model.errors import CloudError, CredentialsError, RemoteCommandError
from dlcloud.model.events import Info, StageStarted
from dlcloud.model.remote import Endpoint
from dlcloud.recipe.workload import Setup
from dlcloud.resources.texts import template
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import Failure, FakeCloud
from tests.fakes.machine import FakeConnection, FakeMachine
from tests.fakes.samples import RECIPE, hardware, price, recipe

REQUIREMENTS = "# pinned\nonnx==1.17.0  # the format\n\nnumpy==2.1.0\n"
BUILT = b'noise\n{"python": "/env/bin/python", "reused": false, "seconds": 3.0}\n'


def test_all_is_asked_for_and_handed_on():
    cloud = FakeCloud(FakeClock(), known_prices=[price()], known_hardware={"c7i.xlarge": hardware()})
    cloud.offered["c6i.xlarge"] = ()
    facts = run_preflight(recipe(), cloud=cloud).facts()
    assert facts.identity.account == "123456789012"
    assert facts.zones == {"c7i.xlarge": cloud.zones}
    assert facts.hardware == {"c7i.xlarge": hardware()}
    assert facts.prices == [price()]
    assert facts.cidrs == ("203.0.113.7/32",)
    assert not cloud.requests


def test_of_several_refusals_that_of_the_credentials_is_raised():
    cloud = FakeCloud(FakeClock())
    cloud.failures += [
        Failure("prices.find", CloudError("prices.find")),
        Failure("caller.identity", CredentialsError("who?")),
        Failure("images.resolve", CloudError("image")),
    ]
    with pytest.raises(CredentialsError, match="who"):
        run_preflight(recipe(RECIPE), cloud=cloud).facts()


def connection(**other):
    machine = FakeMachine("i-0001", **{"answers": {"environment.py": BUILT}, **other})
    return FakeConnection(machine, Endpoint(instance_id="i-0001", host="198.51.100.1"))


def prepared(to, setup=None, requirements=REQUIREMENTS):
    events = []
    python = prepare(to, setup or Setup(), requirements, clock=FakeClock(), emit=events.append)
    return python, events


def test_the_environment_is_keyed_by_its_packages():
    key = environment_key(REQUIREMENTS)
    assert key == environment_key("numpy==2.1.0\nonnx==1.17.0\n")
    assert key != environment_key("numpy==2.1.0\n")
    assert len(key) == 16
    assert packages_of(REQUIREMENTS) == ["numpy==2.1.0", "onnx==1.17.0"]
    assert packages_of("# none\n") == []


def test_without_packages_the_instances_own_python_is_used():
    to = connection()
    assert prepared(to, requirements="# none\n")[0] == "python3"
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


def run_apt_script(tmp_path, **programs):
    """Run apt.sh with these programs alone; return its exit status, what it called, and what it printed."""
    # The clock goes on by 50 s each time it is read.
    date = f"echo x >>{tmp_path}/clock; set -- $(wc -l <{tmp_path}/clock); echo $(($1 * 50))"
    shims = {"sudo": 'exec "$@"', "sleep": "exit 0", "timeout": 'shift; exec "$@"', "date": date, **programs}
    for name, text in shims.items():
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/calls\n{text}\n')
        path.chmod(0o755)
    (tmp_path / "wc").symlink_to("/usr/bin/wc")
    done = subprocess.run(
        ["/bin/sh"],
        input=template("apt.sh").encode(),
        env={"PATH": str(tmp_path)},
        check=False,
        capture_output=True,
    )
    calls = tmp_path / "calls"
    return done.returncode, calls.read_text().splitlines() if calls.exists() else [], done.stderr.decode()


def test_a_list_of_apt_that_is_unsigned_stops_no_set_up_where_others_are_there(tmp_path):
    status, calls, errors = run_apt_script(
        tmp_path, **{"apt-get": "echo not signed; exit 100", "ls": "exit 0"}
    )
    assert status == 0
    assert sum(call.startswith("apt-get") for call in calls) == 4
    assert "not signed" in errors
    assert "going on with the lists that are there" in errors


LOCKED = "echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)'; exit 100"


def test_a_lock_of_apt_is_waited_for_but_not_forever(tmp_path):
    status, calls, errors = run_apt_script(tmp_path, **{"apt-get": LOCKED})
    assert status == 1
    assert sum(call.startswith("apt-get") for call in calls) == 300 // 50
    assert "held by process 7 (apt-get)" in errors


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
