"""What programs of an instance do to the machine: nothing with namespaces, little as a user of their own."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from dlcloud.local.instance.container_init import FIRST
from dlcloud.local.instance.isolation import Isolation, Level, find_isolation, place_instances
from dlcloud.local.instance.processes import base_interpreter
from dlcloud.local.instance.rootfs import package_folders
from dlcloud.local.site_files import SitePaths
from dlcloud.model.errors import LocalCloudError
from tests.fakes.local_ec2 import processes_of, wait_for
from tests.fakes.other_daemon import ORDINARY, ROOT, has_namespaces, other_daemon


@pytest.fixture(scope="module", params=["own user", "ordinary user"])
def isolated(request, rig):
    """A site with namespaces, of the user of the tests and of one without any rights."""
    if request.param == "own user":
        if not has_namespaces(rig):
            pytest.skip(rig.control.status()["isolation"]["reason"])
        yield rig
        return
    if os.getuid() != 0 or not has_namespaces(rig):
        pytest.skip("only root can run a daemon as another user")
    with other_daemon(ORDINARY) as other:
        if not has_namespaces(other):
            pytest.skip(other.control.status()["isolation"]["reason"])
        yield other


@pytest.fixture(scope="module")
def instance(isolated):
    return isolated.up()


@pytest.fixture
def there(isolated, instance):
    """Run a command on the instance and return its output."""
    return lambda command: isolated.on(instance, command)[1].strip()


def test_what_it_writes_is_there_and_not_on_the_machine(there):
    for folder in ("/etc", "/media", "/tmp", "/usr/bin", ""):
        path = f"{folder}/dlcloud-test"
        assert there(f"echo mine | sudo tee {path} >/dev/null; cat {path}") == "mine"
        assert not Path(path).exists()
    add = "echo mine | sudo tee -a /etc/fstab /etc/hosts >/dev/null; tail -qn1 /etc/fstab /etc/hosts"
    assert there(add) == "mine\nmine"
    assert there("sudo sed -i s/mine/other/ /etc/hosts; tail -n1 /etc/hosts") == "other"
    assert "mine" not in Path("/etc/hosts").read_text() + Path("/etc/passwd").read_text()


def test_users_can_be_added_and_lists_of_packages_kept(there):
    """As `useradd` and Ansible's modules `user` and `apt` do it."""
    lock = "import fcntl; fcntl.lockf(open('/etc/.pwd.lock', 'w'), fcntl.LOCK_EX); print('locked')"
    assert there(f'sudo python3 -c "{lock}"') == "locked"
    assert there("test -d /var/lib/apt/lists && echo there") == "there"


def test_the_rest_of_the_machine_is_read_only(there):
    is_elsewhere = ROOT.parts[1] not in ("home", "root", "tmp", "var", "opt", "usr")
    if not is_elsewhere or not os.access(ROOT.parent, os.W_OK):
        pytest.skip("the checkout lies where instances have folders of their own")
    folder = Path(tempfile.mkdtemp(dir=ROOT.parent))
    folder.chmod(0o777)
    try:
        there(f"sudo touch {folder}/file; sudo rm -rf {folder}")
        assert not list(folder.iterdir())
    finally:
        folder.rmdir()


def test_there_is_no_block_device_to_format(there, tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(b"data" * 1024)
    assert there("find /dev -type b; lsblk -n 2>/dev/null") == ""
    there(f"sudo /sbin/mkfs.ext4 -F -q {disk}; sudo mknod /tmp/loop b 7 0 && echo made")
    assert there("test -b /tmp/loop && echo made") == ""
    assert disk.read_bytes() == b"data" * 1024


def test_no_python_of_an_instance_has_packages_of_this_machine(there):
    assert package_folders(), "there is nothing to hide"
    listing = "import importlib.metadata as m; print(sorted(d.name for d in m.distributions()))"
    programs = ["python3", *filter(os.path.exists, ["/usr/bin/python3", "/usr/local/bin/python3"])]
    found = {program: there(f'{program} -c "{listing}"') for program in programs}
    assert found == dict.fromkeys(programs, "[]")


def test_instances_do_not_share_tmp(isolated, there):
    other = isolated.up()
    there("echo mine >/tmp/shared; echo mine >/var/tmp/shared")
    assert isolated.on(other, "cat /tmp/shared /var/tmp/shared")[1] == ""


def test_the_home_of_dlcloud_and_the_users_files_are_hidden(isolated, there, tmp_path):
    (tmp_path / "private").write_text("private")
    folder = isolated.folder
    names = ("access-key.json", "endpoint.json", "daemon.log", "../store.sqlite")
    there(f"cat {' '.join(f'{folder}/{name}' for name in names)} >stolen; cat {tmp_path}/private >>stolen")
    assert there("cat stolen") == ""
    there(f"sudo touch {folder}/made {tmp_path}/made")
    there(f"ln -s {folder}/access-key.json link; sudo mount -t proc p /mnt")
    there(f"sudo umount -l {folder} / /home /root /tmp")
    assert there(f"cat link; cat {folder}/access-key.json; cat /mnt/1/root{folder}/access-key.json") == ""
    assert not (folder / "made").exists()
    assert not (tmp_path / "made").exists()


def test_sftp_serves_the_instances_files(isolated, instance, there):
    there(f"ln -sf {isolated.folder}/access-key.json key; echo mine >/etc/mine")
    with isolated.ssh(instance) as client, client.open_sftp() as sftp:
        for path in ("key", f"{isolated.folder}/access-key.json"):
            with pytest.raises(FileNotFoundError):
                sftp.open(path)
        with sftp.open("/etc/mine") as file:
            assert file.read() == b"mine\n"
        assert "sbin" in sftp.listdir("/usr")


def test_the_log_of_the_boot_cannot_be_led_elsewhere(isolated, tmp_path):
    target = tmp_path / "target"
    target.write_text("")
    target.chmod(0o666)
    link = f"ln -sf {target} $DLCLOUD_ROOT/var/log/cloud-init-output.log"
    instance = isolated.up(UserData=isolated.user_data(f"bootcmd:\n  - {link}\n  - echo written\n"))
    isolated.on(instance, "cloud-init status --wait")
    assert target.read_text() == ""


def test_programs_of_the_machine_are_out_of_reach(there):
    sleeper = subprocess.Popen(["sleep", "1000"])
    try:
        there(f"sudo kill -9 {sleeper.pid}; sudo kill -9 -1")
        assert sleeper.poll() is None
        assert str(sleeper.pid) not in there("ps -eo pid=").split()
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_program_that_loses_its_parent_leaves_no_zombie(there):
    assert there("(sh -c 'sleep 0.01 &' &); sleep 0.3; ps -eo stat= | grep -c Z") == "0"


def test_it_is_root_inside_and_an_ordinary_user_outside(isolated, instance):
    root = isolated.entry(instance["InstanceId"])["folder"]

    def sleepers():
        with contextlib.suppress(OSError):  # one has just ended
            return [p for p in processes_of({root}) if Path(f"/proc/{p}/comm").read_text() == "sleep\n"]

    with isolated.ssh(instance) as client:
        client.exec_command("exec sleep 60")
        user = Path(f"/proc/{wait_for(sleepers, 'it runs')[0]}").stat().st_uid
    assert user != 0
    assert isolated.on(instance, "sudo id -u; sudo whoami; id -u ubuntu")[1] == "0\nroot\n0\n"


def test_cores_shared_memory_and_terminals_are_there(isolated, instance, there):
    assert there("nproc") == str(len(os.sched_getaffinity(0)))
    program = "from multiprocessing.shared_memory import SharedMemory as S; s = S(create=True, size=1 << 20)"
    assert there(f"python3 -c '{program}; print(s.size); s.close(); s.unlink()'") == str(1 << 20)
    with isolated.ssh(instance) as client:
        _, out, _ = client.exec_command("tty; id -u", get_pty=True)
        assert out.read().decode().split() == ["/dev/pts/0", "0"]


def test_names_of_instances_resolve_on_each_other(isolated, instance):
    other = isolated.up()
    private, public, host = other["PrivateDnsName"], other["PublicDnsName"], other["PublicIpAddress"]
    short = private.partition(".")[0]
    for name in (private, short, public):
        wait_for(lambda name=name: isolated.on(instance, f"getent hosts {name}")[1].startswith(host), name)
    assert isolated.on(other, "hostname; hostname -f")[1].split() == [short, private]
    isolated.on(instance, "echo 127.0.0.1 mine | sudo tee -a /etc/hosts; sudo sed -i s/mine/own/ /etc/hosts")
    isolated.ec2.terminate_instances(InstanceIds=[other["InstanceId"]])
    wait_for(lambda: isolated.on(instance, f"getent hosts {short}")[0] == 2, "the name of an ended instance")
    assert isolated.on(instance, "getent hosts own")[0] == 0


@pytest.mark.parametrize(
    "command",
    [
        *("/sbin/shutdown -P now", "/usr/bin/systemctl poweroff", "/sbin/init 0", "/sbin/poweroff -f"),
        "env -i /bin/sudo /sbin/halt",
    ],
)
def test_power_commands_by_path_end_this_instance_alone(isolated, instance, command):
    victim = isolated.up(InstanceInitiatedShutdownBehavior="terminate")
    # Were it not isolated, this would end the machine.
    isolated.on(victim, f"test -x /run/dlcloud/bin/shutdown && {command}")
    isolated.await_state(victim["InstanceId"], "terminated")
    assert isolated.on(instance, "echo alive")[1] == "alive\n"


def command_of(process):
    """Return the words of a process; none of one that has ended."""
    try:
        return tuple((process / "cmdline").read_text().split("\0")[:-1])
    except OSError:
        return ()


def test_an_instance_whose_first_process_ends_is_terminated(isolated):
    instance = isolated.up(InstanceInitiatedShutdownBehavior="terminate")
    mark = f"etc/{instance['InstanceId']}"
    isolated.on(instance, f"sudo touch /{mark}")
    sleeping = [process for process in Path("/proc").glob("[0-9]*") if command_of(process) == FIRST]
    (first,) = [process for process in sleeping if (process / "root" / mark).exists()]
    os.kill(int(first.name), signal.SIGKILL)
    isolated.await_state(instance["InstanceId"], "terminated")


@pytest.mark.parametrize("limit", [Level.NONE, "unknown"])
def test_it_can_be_switched_off(tmp_path, limit):
    environ = {"DLCLOUD_LOCAL_ISOLATION": limit}
    paths = SitePaths(folder=tmp_path)
    isolation = asyncio.run(find_isolation(paths, interpreter=base_interpreter(), environ=environ))
    assert isolation.report() == {"level": "none", "reason": f"DLCLOUD_LOCAL_ISOLATION is {limit}"}


def test_without_namespaces_root_gives_instances_a_user_of_their_own(rig):
    if os.getuid() != 0 or not has_namespaces(rig):
        pytest.skip("needs root")
    with other_daemon(0, Level.USER) as other:
        report = other.control.status()["isolation"]
        assert report["level"] == Level.USER
        assert "DLCLOUD_LOCAL_ISOLATION is user" in report["reason"]
        instance = other.up(InstanceInitiatedShutdownBehavior="terminate")
        entry = other.entry(instance["InstanceId"])
        assert (
            other.on(instance, f"cat {other.folder}/access-key.json; sudo touch /etc/mine; echo done")[1]
            == "done\n"
        )
        assert int(other.on(instance, "id -u")[1]) > 0
        assert (
            other.on(instance, "echo x >file; sudo chown $(id -u) file; cat file; ls .cache/ >&2")[1] == "x\n"
        )
        assert other.metadata_v2(instance, "latest/meta-data/instance-id")[1] == instance["InstanceId"]
        token = "curl -sX PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 9' $AWS_EC2_METADATA_SERVICE_ENDPOINT"
        assert shutil.which("curl") is None or other.on(instance, f"{token}/latest/api/token")[1]
        with other.ssh(instance) as client, client.open_sftp() as sftp:
            assert sftp.stat("file").st_uid > 0
        other.on(instance, "shutdown -P now")
        other.await_state(instance["InstanceId"], "terminated")
        assert not Path(entry["folder"]).exists()


def programs_of(user):
    """Yield the processes of a user that have not ended; one that is not awaited stays as a zombie."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            if process.stat().st_uid == user and state != "Z":
                yield process.name


def test_at_level_user_nothing_of_an_instance_outlives_it(rig):
    if os.getuid() != 0 or not has_namespaces(rig):
        pytest.skip("needs root")
    with other_daemon(0, Level.USER) as other:
        first, second = other.up(), other.up()
        users = [int(other.on(instance, "id -u")[1]) for instance in (first, second)]
        assert len({0, *users}) == 3
        folder = other.entry(second["InstanceId"])["folder"]
        assert other.on(first, f"cat {folder}/lib/power {folder}/home/.profile")[1] == ""
        assert len(other.on(second, f"cat {folder}/lib/power")[1]) > 16
        # What one has put into the cache, the other may replace.
        assert other.on(first, "mkdir -p ~/.cache/both/deep && echo 1 >~/.cache/both/deep/x")[0] == 0
        assert other.on(second, "echo 2 >~/.cache/both/deep/x && rm -r ~/.cache/both")[0] == 0
        forked = "cd /; env -i setsid sh -c 'while :; do sleep 600; done' >/dev/null 2>&1 </dev/null &"
        other.on(first, f"{forked} echo begun")
        other.end(first["InstanceId"])
        assert not list(programs_of(users[0]))
        assert other.on(second, "echo alive")[1] == "alive\n"


def test_a_folder_in_the_place_of_instances_gets_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr("dlcloud.local.instance.isolation.SHARED", str(tmp_path / "dlcloud"))
    (tmp_path / f"dlcloud-{ORDINARY}").symlink_to(tmp_path)
    isolation = Isolation(level=Level.USER, owner=ORDINARY)
    with pytest.raises(LocalCloudError, match="is not this user's folder") as caught:
        place_instances(SitePaths(folder=tmp_path), isolation)
    assert "remove" in caught.value.hint
