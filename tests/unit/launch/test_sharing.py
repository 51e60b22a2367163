"""Files reach many instances from a few, and from here where no instance gives them."""

import hashlib
import io
import json
import tarfile
import threading

import pytest

from dlcloud.launch.setup import EnvironmentPeer
from dlcloud.launch.user_files import CLIENTS, FEWEST, LEAST_BYTES, SEEDS, Sharing
from dlcloud.model.errors import RemoteCommandError, UnreachableError
from dlcloud.model.remote import Endpoint
from dlcloud.ssh.listing import list_entries
from dlcloud.system.parallel import fan_out
from tests.fakes.machine import FakeConnection, FakeMachine


class Machines:
    """Instances that keep the archives that they are sent, and give them to each other."""

    def __init__(self, count):
        self.machines = {f"i-{number}": Sharer(f"i-{number}") for number in range(count)}
        for machine in self.machines.values():
            machine.others = self.machines
        self.allowed = []
        self.sharing = Sharing(allow=lambda: self.allowed.append(True))
        self.sharing.expect(count)

    def peer(self, name):
        return EnvironmentPeer(instance_id=name, host=name, connect=lambda: self.connect(name))

    def connect(self, name):
        return SharerConnection(self.machines[name], Endpoint(instance_id=name, host=name))

    def send(self, name, files):
        self.sharing.send(self.connect(name), self.peer(name), files, "work")

    def send_to_all(self, files):
        return fan_out(lambda name: self.send(name, files), list(self.machines), width=len(self.machines))


class Sharer(FakeMachine):
    """One of them: `uploads` are the bytes from here, `copies` the instances that it copied from."""

    def __init__(self, name):
        super().__init__(name)
        self.others, self.archive, self.uploads, self.copies, self.unpacked = {}, b"", [], [], b""
        self.gives, self.giving, self.most_giving, self.lock = True, 0, 0, threading.Lock()


class SharerConnection(FakeConnection):
    """A connection that knows the commands of sharing."""

    def pipe(self, command, pieces):
        self._alive()
        self.machine.archive = b"".join(pieces)
        self.machine.uploads.append(len(self.machine.archive))
        self._unpack(command)

    def check(self, command, *, stdin=b"", timeout_s=None):  # noqa: ARG002  the protocol's
        self._alive()
        order = json.loads(stdin)
        if "peer.py serve" in command:
            if not self.machine.gives or not self.machine.archive:
                raise RemoteCommandError("it gives nothing")
            with self.machine.lock:
                self.machine.giving += 1
                self.machine.most_giving = max(self.machine.most_giving, self.machine.giving)
            return b'{"port": 1}\n'
        giver = self.machine.others[order["host"]]
        self.machine.archive = giver.archive
        self.machine.copies.append(giver.instance_id)
        with giver.lock:
            giver.giving -= 1
        self._unpack(command)
        return b"{}\n"

    def _unpack(self, command):
        if hashlib.sha256(self.machine.archive).hexdigest() not in command:
            raise RemoteCommandError("another archive")
        self.machine.unpacked = self.machine.archive


@pytest.fixture
def files(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"x" * LEAST_BYTES)
    (entry,) = list_entries(tmp_path)
    return [type(entry)(path=entry.path, name=entry.name, size=LEAST_BYTES)]


def test_a_few_are_sent_to_from_here_and_the_others_copy_from_them(files):
    world = Machines(40)
    assert all(outcome.error is None for outcome in world.send_to_all(files))
    machines = world.machines.values()
    assert 1 <= sum(len(machine.uploads) for machine in machines) <= SEEDS
    assert all(len(machine.uploads) + len(machine.copies) == 1 for machine in machines)
    assert max(machine.most_giving for machine in machines) <= CLIENTS
    assert world.allowed == [True]
    with tarfile.open(fileobj=io.BytesIO(world.machines["i-7"].unpacked)) as archive:
        assert archive.getnames() == ["data.bin"]


@pytest.mark.parametrize(("count", "silent"), [(20, 10), (FEWEST, FEWEST)])
def test_an_instance_that_gives_nothing_is_replaced_by_another_or_by_this_machine(files, count, silent):
    world = Machines(count)
    for name in list(world.machines)[:silent]:
        world.machines[name].gives = False
    assert all(outcome.error is None for outcome in world.send_to_all(files))
    assert all(machine.unpacked for machine in world.machines.values())
    if silent == count:
        assert [len(machine.uploads) for machine in world.machines.values()] == [1] * count


def test_another_archive_than_the_one_packed_here_is_not_unpacked(files):
    world = Machines(FEWEST)
    world.send("i-0", files)
    world.machines["i-0"].archive = b"something else"
    world.send("i-1", files)
    assert world.machines["i-1"].uploads
    assert world.machines["i-1"].unpacked != b"something else"


def test_an_instance_that_is_gone_keeps_no_other_from_the_files(files):
    world = Machines(FEWEST + 2)
    world.machines["i-0"].gone = world.machines["i-1"].gone = True
    outcomes = world.send_to_all(files)
    lost = [outcome.item for outcome in outcomes if isinstance(outcome.error, UnreachableError)]
    assert lost == ["i-0", "i-1"]
    assert all(machine.unpacked for name, machine in world.machines.items() if name not in lost)


def test_few_instances_and_few_bytes_are_sent_as_ever(files, tmp_path):
    world = Machines(FEWEST - 1)
    world.send("i-0", files)
    small = Machines(FEWEST)
    small.send("i-0", [type(files[0])(path=tmp_path / "data.bin", name="data.bin", size=1)])
    for machine in (world.machines["i-0"], small.machines["i-0"]):
        assert machine.sent == [(["data.bin"], "work")]
        assert not machine.archive
    assert world.allowed == small.allowed == []
