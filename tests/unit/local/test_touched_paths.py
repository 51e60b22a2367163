"""What the daemon touches in the folder of an instance, as strace shows it, is what hostile trees poison."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dlcloud.local.instance.isolation import Level
from dlcloud.local.instance.processes import package_sources
from dlcloud.local.instance.rootfs import RootFs
from dlcloud.local.site import LocalSite
from dlcloud.local.tree.instance_tree import InstanceTree
from tests.fakes.local_ec2 import WAIT_S, Rig, wait_for
from tests.fuzz.trees import LEFT_OUT, PATHS
from tests.needs import needs

TRACE = ("-f", "-qq", "-y", "-s", "4096", "-e", "trace=%file,clone,clone3")
SCRIPT = "$DLCLOUD_ROOT/var/lib/cloud/scripts/per-boot"
USE = f"""
mkdir -p {SCRIPT} && printf '#!/bin/sh\\n' >{SCRIPT}/x && chmod +x {SCRIPT}/x
touch ~/x; sudo shutdown -P +3; sudo shutdown -c
"""
NEW = re.compile(r"(^|/)\.[0-9a-f]{16}$")
"""The names of files that take another's place when they are whole."""


def trace(folder, level):
    """Run a daemon and two instances, one of the other's image, to their end; returns what strace wrote."""
    site, log = LocalSite(folder / "site"), folder / "trace"
    (folder / "site").mkdir(mode=0o700)
    command = ["strace", *TRACE, "-o", log, sys.executable, "-m", "dlcloud.local.daemon", folder / "site"]
    with subprocess.Popen(command, env={**os.environ, "DLCLOUD_LOCAL_ISOLATION": level}) as traced:
        wait_for(lambda: traced.poll() is not None or site.find() is not None, "the daemon answers")
        if traced.poll() is not None:
            pytest.skip("no program can be traced here")
        try:
            rig = Rig(site, site.find())
            if level == Level.NAMESPACES and rig.control.status()["isolation"]["level"] != level:
                pytest.skip(rig.control.status()["isolation"]["reason"])
            use(rig)
        finally:
            site.stop()
            traced.wait(WAIT_S)
    return log.read_text(errors="replace")


def use(rig):
    """Let a daemon do all that it does in an instance's folder."""
    first = rig.up(UserData=rig.user_data("runcmd: [echo done]\n"))
    rig.on(first, USE)
    rig.on(first, "cloud-init status --wait")
    rig.ec2.get_console_output(InstanceId=first["InstanceId"])
    image = rig.ec2.create_image(InstanceId=first["InstanceId"], Name="an image")["ImageId"]
    rig.ec2.get_waiter("image_available").wait(ImageIds=[image], WaiterConfig={"Delay": 1})
    second = rig.up(ImageId=image)["InstanceId"]
    for instance_id in (first["InstanceId"], second):
        rig.end(instance_id)
    rig.ec2.deregister_image(ImageId=image)


def calls_of_threads(text):
    """Yield the system calls of the first process of a trace, with all of its threads, and of no other."""
    threads, begun = set(), {}
    for line in text.splitlines():
        number, _, call = line.partition(" ")
        call = call.strip()
        threads = threads or {number}
        if call.endswith("<unfinished ...>"):
            begun[number] = call.removesuffix("<unfinished ...>")
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", call):
            call = begun.pop(number, "") + resumed[1]
        if number in threads:
            yield call
            if thread := re.match(r"clone3?\(.*CLONE_THREAD.* = (\d+)$", call):
                threads.add(thread[1])


def touched(text):
    """Return the paths in folders of instances and images that the first process of a trace has named."""
    paths = set()
    for call in calls_of_threads(text):
        below = [f"{folder}/{name}" for folder, name in re.findall(r'<(/[^>]*)>, "([^"]*)"', call)]
        whole = re.findall(r'^\w+\((?:AT_FDCWD(?:<[^>]*>)?, )?"(/[^"]*)"', call)
        for path in whole or below:
            if found := re.search(r"/(?:instances|images)/(?:trial-\w+|\w+-[0-9a-f]+)/(.+)$", path):
                paths.add(os.path.normpath(found[1]))
    return {path for path in paths if path != "." and not NEW.search(path)}


def mount_points(folder):
    """Return where instances see folders of this machine, with the folders above; also in `rootfs`."""
    (folder / "tree").mkdir(parents=True)
    settings = [Path(word) for word in package_sources(os.environ).values() if word.startswith("/")]
    shown = (Path(sys.base_prefix), *settings)
    machine = RootFs(image=folder, hidden=(), shown=shown, cache=folder, owner=0, overlay_options="")
    words = {word for step in machine.steps(InstanceTree(folder / "tree")) for word in step[1:]}
    points = [Path(word) for word in words if word.startswith("/")]
    return {str(path).strip("/") for point in points for path in (point, *point.parents)}


def is_left_out(path, points):
    names = path.split("/")
    above = {"/".join(names[: count + 1]) for count in range(len(names))}
    return not above.isdisjoint(LEFT_OUT) or path.removeprefix("rootfs/") in points


@needs("strace")
@pytest.mark.parametrize("level", [Level.NAMESPACES, pytest.param(Level.NONE, marks=pytest.mark.long)])
def test_hostile_trees_poison_every_path_that_the_daemon_touches(tmp_path, level):
    paths = touched(trace(tmp_path, level))
    assert {"home/.ssh/authorized_keys", "var/log/cloud-init-output.log", "run/nologin"} <= paths
    points = mount_points(tmp_path / "steps")
    missing = {path for path in paths if path not in PATHS and not is_left_out(path, points)}
    assert sorted(missing) == [], json.dumps(sorted(paths))
