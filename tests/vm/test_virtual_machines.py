"""A real first boot behind the local EC2's API and metadata: kernel, systemd, cloud-init, OpenSSH and apt.

Each test prints what it measured (`pytest -s`).
"""

import time

import pytest
import yaml

from dlcloud.resources.texts import user_data
from dlcloud.ssh.keys import create_key, new_secret
from tests.vm.image import LOGIN, SUITE

pytestmark = pytest.mark.timeout(2400)

# The type with the longest time to boot: a virtual machine without hardware support takes minutes.
RECIPE = """
name: vm
cloud: local
instances: {{types: [c5.metal], user: {user}}}
setup:
  commands: |
    sudo apt-get install -qy dlcloud-sample
    mkdir -p ~/.config/pip
    printf '[global]\\nno-index = true\\nfind-links = /srv/wheels\\n' >~/.config/pip/pip.conf
  requirements: [tinysample==1.0]
workload:
  command: 'dlcloud-sample && python -c "import tinysample; print(tinysample.ANSWER)"'
  repeats: 1
budget: {{max_hours: 0.25}}
"""
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
ENDS_AT = "cat /var/lib/dlcloud/ends-at"
IMAGE = "ami-0d1c10cd000002404"


def write_recipe(user, login):
    path = user.home / "vm.yaml"
    path.write_text(RECIPE.format(user=login))
    return str(path)


def execute(user, command):
    """Run a command on the instance; return what it printed, nothing if there was no connection."""
    return user.run("exec", "vm", "--", command, expect=None).stdout.strip()


def describe(user, instance_id=None):
    names = ["--instance-ids", instance_id] if instance_id else []
    (reservation,) = user.aws("ec2", "describe-instances", *names)["Reservations"]
    return reservation["Instances"][0]


def is_terminated(user, instance_id):
    return describe(user, instance_id)["State"]["Name"] == "terminated"


def wait_until(check, *, seconds):
    """Poll until a condition holds; return the seconds it took."""
    began = time.monotonic()
    while not check():
        assert time.monotonic() - began < seconds, "it never came true"
        time.sleep(3)
    return time.monotonic() - began


def up(user, *arguments, login, expect):
    """Run `up`; return the seconds it took, and what it printed beside its result."""
    began = time.monotonic()
    done = user.run("up", write_recipe(user, login), "--yes", *arguments, expect=None)
    if done.returncode != expect:
        instance_id = describe(user)["InstanceId"]
        console = user.aws("ec2", "get-console-output", "--instance-id", instance_id)["Output"]
        pytest.fail(f"up: {done.returncode}\n{done.stdout}{done.stderr}\n{console[-20000:]}")
    return time.monotonic() - began, done.stderr


def reboot(user):
    """Reboot the instance; the end of its budget does not move, and has a timer again."""
    boot_id, ends_at = execute(user, BOOT_ID), execute(user, ENDS_AT)
    execute(user, "sudo systemctl reboot")
    seconds = wait_until(lambda: execute(user, BOOT_ID) not in {"", boot_id}, seconds=600)
    print(f"a reboot took {seconds:.0f} s")
    assert execute(user, ENDS_AT) == ends_at
    wait_until(lambda: execute(user, "systemctl is-active dlcloud-budget.timer") == "active", seconds=120)


def use_until_the_end(user):
    """Log in again and again until the instance powers off."""
    instance_id, end = describe(user)["InstanceId"], float(execute(user, ENDS_AT))
    admitted = 0.0
    while time.time() < end - 10:
        asked = time.time()
        if execute(user, "echo admitted") == "admitted":
            admitted = asked
    wait_until(lambda: is_terminated(user, instance_id), seconds=240)
    print(f"last login {end - admitted:.0f} s before the end; terminated {time.time() - end:.0f} s after it")
    assert end - admitted < 60
    assert describe(user, instance_id)["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_set_up_a_run_a_reboot_and_logins_until_the_budget_ends(user):
    seconds, progress = up(user, "--keep", login=LOGIN, expect=0)
    print(f"\nup took {seconds:.0f} s\n{progress}")
    print(execute(user, "systemd-analyze; systemctl list-timers 'dlcloud*'; cat dlcloud/apt.log"))
    assert "held by process" in execute(user, "cat dlcloud/apt.log")
    assert execute(user, "systemctl is-active dlcloud-life.timer") == "active"
    reboot(user)
    use_until_the_end(user)


def test_a_wrong_user_is_refused_with_the_images_own(user):
    wrong = "debian" if LOGIN == "ubuntu" else "ubuntu"
    seconds, progress = up(user, login=wrong, expect=4)
    print(f"\nup took {seconds:.0f} s\n{progress}")
    assert f"login refused for user {wrong}; the image's user is {LOGIN}" in progress
    assert user.alive() == []


def read_console(user, instance_id):
    return user.aws("ec2", "get-console-output", "--instance-id", instance_id).get("Output", "")


INHIBIT = (
    "systemd-inhibit --what=shutdown --mode=block --who=apt --why=upgrade sleep 3600 & sleep 5; "
    "systemctl --version >/dev/console; systemd-inhibit --list >/dev/console; "
    "systemctl poweroff >/dev/console 2>&1; echo poweroff-ended-with $? >/dev/console"
)
"""Hold what apt holds while it runs, and try to power off as root without -i."""


@pytest.mark.skipif(
    SUITE == "bookworm", reason="DLCLOUD_TEST_VM_SUITE=trixie: it is systemd 257 that binds root"
)
def test_a_block_inhibitor_keeps_no_instance_alive(user):
    text = user_data(
        public_key=create_key(user.home / "key"),
        secret=new_secret(),
        life_minutes=5,
        idle_minutes=None,
        user=LOGIN,
    )
    content = yaml.safe_load(text)
    content["runcmd"].append(["sh", "-c", INHIBIT])
    path = user.home / "user-data"
    path.write_text("#cloud-config\n" + yaml.safe_dump(content))
    options = f"--image-id {IMAGE} --instance-type c5.large --count 1 --user-data file://{path}".split()
    options += ["--instance-initiated-shutdown-behavior", "terminate"]
    instance_id = user.aws("ec2", "run-instances", *options)["Instances"][0]["InstanceId"]
    # The console keeps the last 64 KiB only, and a boot's progress fills it.
    refused = wait_until(lambda: "poweroff-ended-with 1" in read_console(user, instance_id), seconds=1800)
    seconds = refused + wait_until(lambda: is_terminated(user, instance_id), seconds=900)
    print(
        f"\nroot's poweroff was refused; an end of 5 minutes came {seconds / 60:.1f} minutes after the launch"
    )
    assert describe(user, instance_id)["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_an_idle_instance_ends_without_its_user_or_a_launcher(user):
    path = user.home / "user-data"
    public_key = create_key(user.home / "key")
    path.write_text(
        user_data(public_key=public_key, secret=new_secret(), life_minutes=60, idle_minutes=6, user="absent")
    )
    image = f"--image-id {IMAGE} --instance-type c5.large --count 1 --user-data file://{path}"
    options = [*image.split(), "--instance-initiated-shutdown-behavior", "terminate"]
    instance_id = user.aws("ec2", "run-instances", *options)["Instances"][0]["InstanceId"]
    seconds = wait_until(lambda: is_terminated(user, instance_id), seconds=1200)
    print(f"\nan idle end of 6 minutes came {seconds / 60:.1f} minutes after the launch")
    assert seconds > 6 * 60
