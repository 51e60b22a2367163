"""What a killed daemon left behind is cleared up, and nothing else is."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlcloud.local.instance.processes import UserIds, clear_leftovers
from dlcloud.local.site import LocalSite
from dlcloud.local.site_files import SitePaths
from tests.fakes.local_ec2 import Rig, processes_of, wait_for
from tests.fakes.other_daemon import FAR_AWAY_S, ROOT, has_namespaces
from tests.needs import needs

UNUSED = 4711  # no other test runs programs with this user id, nor with the next


@pytest.fixture
def odd():
    """A program of this machine with an environment that is no text, named as those of instances are."""
    with subprocess.Popen(["/bin/sleep", "900"], env={b"DLCLOUD_ROOT": b"\xff"}) as process:
        yield process
        process.kill()


@needs("setsid")
def test_nothing_of_a_killed_daemon_is_left_and_nothing_of_others_is_touched(rig, tmp_path, odd):
    bystander = rig.up()
    site = LocalSite(tmp_path / "site")
    killed = Rig(site, site.start())
    instance = killed.up()
    killed.on(instance, "setsid sleep 1000 >/dev/null 2>&1 </dev/null &")
    root = Path(killed.entry(instance["InstanceId"])["folder"])
    assert processes_of({str(root)})
    (site._paths.cache / "kept").write_text("environment")
    with rig.ssh(bystander) as client:
        feed, out, _ = client.exec_command("echo begun; cat")
        assert out.readline() == "begun\n"
        os.kill(killed.endpoint.pid, signal.SIGKILL)
        wait_for(lambda: site.find() is None, "the daemon is dead")
        if has_namespaces(rig):
            wait_for(lambda: not processes_of({str(root)}), "its processes end by themselves")
            assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
        second = site.start()
        assert second.pid != killed.endpoint.pid
        assert second.control.status()["instances"] == []
        assert not processes_of({str(root)})
        assert not root.exists()
        assert (site._paths.cache / "kept").exists()
        assert site.stop()
        feed.write(b"to the end")
        feed.channel.shutdown_write()
        assert (out.channel.recv_exit_status(), out.read()) == (0, b"to the end")
    assert rig.state(bystander["InstanceId"]) == "running"
    rig.end(bystander["InstanceId"])
    assert odd.poll() is None


HOLD_USER_ID = """
import sys
from pathlib import Path
from dlcloud.local.instance.processes import UserIds
user = int(sys.argv[2])
UserIds(Path(sys.argv[1]), range(user, user + 1)).take(())
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def another_daemon_has(lock, user):
    command = [sys.executable, "-c", HOLD_USER_ID, lock, str(user)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as daemon:
        assert daemon.stdout.readline() == b"held\n"
        yield
        daemon.stdin.close()


def test_no_two_daemons_give_instances_the_same_user_id(tmp_path):
    lock = tmp_path / "user-ids.lock"
    users = UserIds(lock, range(UNUSED, UNUSED + 2))
    with another_daemon_has(lock, UNUSED):
        assert users.take(()) == UNUSED + 1
        with pytest.raises(OSError, match="no user id is left"):
            users.take((UNUSED + 1,))
        assert not users.reserve(UNUSED)
    assert users.take((UNUSED + 1,)) == UNUSED
    # What no living instance has is free again.
    assert users.take((UNUSED,)) == UNUSED + 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root runs programs of other users")
@pytest.mark.parametrize("has_it", ["none", "another daemon", "all instances"])
def test_only_programs_of_an_id_that_the_dead_had_alone_are_killed_by_it(tmp_path, has_it):
    paths, lock = SitePaths(folder=tmp_path), tmp_path / "user-ids.lock"
    home = paths.instances / "i-1/home"
    home.mkdir(parents=True)
    os.chown(home, UNUSED, UNUSED)
    ids = None if has_it == "all instances" else UserIds(lock, range(UNUSED, UNUSED + 2))
    other = another_daemon_has(lock, UNUSED) if has_it == "another daemon" else contextlib.nullcontext()
    with other, subprocess.Popen(["sleep", "1000"], user=UNUSED, cwd="/") as program:
        asyncio.run(clear_leftovers(paths, ids))
        if has_it == "none":
            assert program.wait(FAR_AWAY_S) == -signal.SIGKILL
        else:
            assert program.poll() is None
            program.kill()
