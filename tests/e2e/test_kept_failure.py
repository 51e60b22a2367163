"""`keep: {failed: 1m}`: the instance of a failed run stays up to look at, and ends by itself."""

from pathlib import Path

import pytest
from terminal import wait_until


def recipe(user, keep):
    path = user.home / "failing.yaml"
    path.write_text(
        "name: failing\ncloud: local\ninstances: {types: [c5.xlarge], count: 2}\n"
        "workload: {command: 'echo broken; exit 3', repeats: 1}\n"
        f"keep: {{failed: {keep}}}\n"
    )
    return str(path)


def test_the_instance_of_a_failed_run_stays_up_and_ends_by_itself(user):
    user.control.set_minute(20)
    failed = user.run("up", recipe(user, "1m"), "--name", "failing", expect=4)
    words = " ".join(failed.stderr.split())
    assert "failing is kept up for 1 minutes (0.00283 USD at most), to look at" in words
    (kept,) = user.alive()
    assert "broken" in user.run("exec", "failing", "--", "cat dlcloud/runs/failing-*/log").stdout
    assert kept in user.run("status").stdout
    wait_until(lambda: user.alive() == [])
    user.control.set_minute(60)
    user.run("down", "failing")
    assert user.run("status").stdout == "nothing is up\n"


@pytest.mark.long
def test_the_next_up_on_it_goes_on_beyond_that_time(user):
    path = recipe(user, "30m")
    user.run("up", path, "--name", "failing", expect=4)
    (kept,) = user.alive()
    user.run("up", path, "--name", "failing", expect=4)
    assert kept in user.alive()
    state = user.run(
        "exec", "failing", "--", "python3 -I -S dlcloud/job.py state dlcloud/runs/keep", expect=None
    )
    assert "running" not in state.stdout
    user.run("down", "failing")
    assert user.alive() == []


@pytest.mark.long
def test_a_corrected_recipe_runs_on_the_instance_that_was_kept_and_terminates_it(user):
    path = recipe(user, "30m")
    text = Path(path).read_text().replace("count: 2", "count: 1")
    Path(path).write_text(text)
    user.run("up", path, expect=4)
    (kept,) = user.alive()
    Path(path).write_text(text.replace("exit 3", "echo mended > a.txt"))
    plan = " ".join(user.run("plan", path).stdout.split())
    assert "is used again: it was kept up when its run failed" in plan
    done = user.run("up", path, "--output", "json")
    assert kept in done.stderr
    assert "1 file(s) downloaded" in done.stderr
    assert user.alive() == []


def test_a_time_that_is_none_is_refused(user):
    assert "write a duration between 1m and 24h" in user.run("up", recipe(user, "soon"), expect=2).stderr
