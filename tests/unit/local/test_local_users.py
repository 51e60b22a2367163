"""What programs of an instance do to the machine at level user: each instance is a user of its own."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from dlcloud.local.instance.isolation import Isolation, Level, place_instances
from dlcloud.local.site_files import SitePaths
from dlcloud.model.errors import LocalCloudError
from tests.fakes.other_daemon import ORDINARY, has_namespaces, other_daemon


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
