"""The commands on a full disk: what is stored is read, and instances are terminated all the same."""

import pytest
from terminal import DLCLOUD, User

FULL = ("sh", "-c", 'ulimit -f 0; exec "$@"', "sh", str(DLCLOUD))


@pytest.mark.timeout(300)
def test_instances_are_terminated_from_a_full_disk(user):
    user.run("up", user.recipe(), "--keep")
    full = User(home=user.home, command=FULL)
    down = full.run("down", "--all", expect=1)
    assert "is terminated, but" in down.stderr
    assert "hint: free space on" in down.stderr
    assert "terminated" in full.run("status").stdout


def test_a_full_disk_is_named_where_the_local_ec2_cannot_start(newcomer):
    full = User(home=newcomer.home, command=FULL)
    newcomer.run("status")
    refused = full.run("local", "start", expect=1)
    assert "nothing can be written there: File too large" in refused.stderr
    assert "hint: free space on" in refused.stderr
