"""A tracker's feed: whatever the server does, a command goes on and says what is missing there."""

from datetime import UTC, datetime

import pytest

from dlcloud.app.context import Context
from dlcloud.app.results import tracker_feed
from dlcloud.app.results.tracker_feed import TrackerFeed
from dlcloud.model.errors import TrackerError, TrackerRefusedError
from dlcloud.model.instance import Market
from dlcloud.results.result import Run, RunState
from dlcloud.trackers.mlflow import MlflowServer
from tests.fakes.mlflow import FakeMlflow

BEGUN = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path))
    monkeypatch.setattr(tracker_feed, "PATIENCE_S", 0.0)
    with Context("up", in_library=True, quiet=True) as context:
        context.messages = []
        vars(context)["emit"] = lambda event: context.messages.append(event.message)
        yield context


@pytest.fixture
def run(context):
    run = Run(
        run_id="sweep-1",
        cluster_id="c",
        cluster_name="sweep-ab",
        instance_id="i-1",
        workload="sweep",
        cloud="aws",
        region="us-east-1",
        zone="us-east-1a",
        instance_type="c5.large",
        market=Market.SPOT,
        image_id="ami-1",
        hourly_usd=None,
        price_source="",
        price_as_of=None,
        state=RunState.DONE,
        started_at=BEGUN,
        ended_at=BEGUN,
        trial=1,
        trial_values='{"lr": "0.1"}',
    )
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

    other = Run(**{field: getattr(run, field) for field in Run.__dataclass_fields__} | {"run_id": "sweep-2"})
    context.runs.add(other)
    feed = TrackerFeed(context=context, server=Choosy(url=fake.url), name="sweep", facts={})
    feed.close(lambda: [run, other])
    assert len(fake.runs) == 1
    assert any("sweep-1 is not tracked: not this one" in message for message in context.messages)
