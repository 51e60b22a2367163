"""`dlcloud cancel`: a run is stopped from another shell, and its cluster stays up."""

from terminal import TIMEOUT_S, wait_until


def test_cancel_stops_the_run_and_keeps_the_cluster(user):
    process = user.begin("up", user.recipe("echo begun; sleep 600"), "--name", "long")
    wait_until(lambda: user.run("logs", "long", expect=None).returncode == 0)
    assert "long stays up" in user.run("cancel", "long").stdout
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 4, err
    assert "long is kept up" in err
    assert [record["state"] for record in user.json("status")["result"]["records"]] == ["running"]
    assert "nothing is running" in user.run("cancel", expect=2).stderr
    failing = user.recipe("exit 3")
    user.run("up", failing, "--name", "long", expect=4)
    assert user.json("status")["result"]["records"] != [], "a cluster that was kept stays up"
    user.run("down", "long")
    user.run("up", failing, expect=4)
    assert user.json("status")["result"]["records"] == [], "the next failure is not taken for a cancelled run"
