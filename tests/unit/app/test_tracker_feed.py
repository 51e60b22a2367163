"""A tracker's feed: whatever the server does, a command goes on and says what is missing there."""

from dataclasses import replace

import pytest

from dlcloud.app.context import Context
from dlcloud.app.results import tracking
from dlcloud.app.results.tracking import TrackerFeed
from dlcloud.model.errors import TrackerError, TrackerRefusedError
from dlcloud.trackers.mlflow import MlflowServer
from tests.fakes import samples
from tests.fakes.mlflow import FakeMlflow


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path))
    monkeypatch.setattr(tracking, "PATIENCE_S", 0.0)
    with Context("up", in_library=True, quiet=True) as context:
        context.messages = []
        vars(context)["emit"] = lambda event: context.messages.append(event.message)
        yield context


@pytest.fixture
def run(context):
    values = {"ended_at": samples.THEN, "trial": 1, "trial_values": '{"lr": "0.1"}'}
    run = samples.run("sweep-1", cluster_name="sweep-ab", **values)
    context.runs.add(run)
    return run


@pytest.fixture
def fake():
    fake = FakeMlflow()
    yield fake
    fake.close()


class BrokenServer:
    """A server that fails in a way of its own."""

    url = "http://broken"

    def __init__(self, error):
        self._error = error

    def experiment(self, _name):
        raise self._error


@pytest.mark.parametrize("error", [TrackerError("it is down"), KeyError("experiment"), RuntimeError("odd")])
def test_no_error_of_a_tracker_fails_the_command(context, run, error):
    feed = TrackerFeed(context=context, server=BrokenServer(error), name="sweep", facts={})
    feed.start(lambda: [run])
    feed.close(lambda: [run])
    assert any("1 run(s) are not on MLflow" in message for message in context.messages)
    assert any("dlcloud export http://broken --run sweep-ab" in message for message in context.messages)


def test_a_second_feed_sends_what_the_first_did_not_and_nothing_twice(context, run, fake):
    fake.is_down = True
    server = MlflowServer(url=fake.url)
    TrackerFeed(context=context, server=server, name="sweep", facts={}).close(lambda: [run])
    assert fake.runs == {}
    fake.is_down = False
    for _ in range(2):
        TrackerFeed(context=context, server=server, name="sweep", facts={}).close(lambda: [run])
    (sent,) = fake.runs.values()
    assert sent["info"]["status"] == "FINISHED"
    assert {param["key"]: param["value"] for param in sent["data"]["params"]}["lr"] == "0.1"


def test_a_run_that_is_refused_does_not_keep_others_back(context, run, fake):
    class Choosy(MlflowServer):
        def create(self, experiment, name, tags, at_ms):
            if tags["dlcloud.run"] == "sweep-1":
                raise TrackerRefusedError("not this one")
            return super().create(experiment, name, tags, at_ms)

    other = replace(run, run_id="sweep-2")
    context.runs.add(other)
    feed = TrackerFeed(context=context, server=Choosy(url=fake.url), name="sweep", facts={})
    feed.close(lambda: [run, other])
    assert len(fake.runs) == 1
    assert any("sweep-1 is not tracked: not this one" in message for message in context.messages)
