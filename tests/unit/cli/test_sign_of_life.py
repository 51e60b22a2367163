"""On a terminal, every command shows something before it waits for a network."""

import io
import os
import signal
import socket
import sys
import threading

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.cli.main import dlcloud
from dlcloud.model.cluster import ClusterState, Member
from dlcloud.ssh.keys import create_key
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.home import Paths
from dlcloud.store.runs import Runs
from tests.fakes.samples import RECIPE, cluster, instance, price, run

COMMANDS = {
    "up": ["recipe.yaml", "--dry-run"],
    "plan": ["elastic.yaml", "--deadline", "20h"],
    "bench": ["-i", "c7i.xlarge", "--dry-run"],
    "status": [],
    "logs": [],
    "exec": ["sample-1a2b", "--", "true"],
    "ssh": [],
    "resize": ["sample-1a2b", "3"],
    "image": ["--list"],
    "down": [],
    "instances": ["--live"],
    "doctor": ["recipe.yaml"],
    "gc": ["--dry-run"],
}
"""The commands that need a network, with words by which they do."""

ELASTIC = """\
name: elastic
instances: {types: [c7i.xlarge], count: {min: 1, max: 4}, market: spot-then-on-demand, on_demand_base: 1}
workload: {command: python3 train.py, elastic: {}}
deadline: {finish: 20h, work: {steps: 1000, per_hour: 100}}
"""


class NetworkReachedError(BaseException):
    """The command would wait now."""


class Terminal(io.TextIOWrapper):
    def __init__(self):
        super().__init__(io.BytesIO(), "utf-8", write_through=True)

    def isatty(self):
        return True

    def shown(self):
        return self.buffer.getvalue().decode()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with a cluster that is up on AWS, where its program runs."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "DLCLOUD_"))]:
        monkeypatch.delenv(name)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "elastic.yaml").write_text(ELASTIC)
    database = Database(tmp_path / "home" / "store.sqlite")
    clusters = Clusters(database)
    clusters.add(cluster(state=ClusterState.READY))
    clusters.put_members("c0ffee", [Member(instance=instance(), hourly_usd=price().hourly_usd)])
    Runs(database).add(run(state=RunState.RUNNING))
    database.close()
    paths = Paths(tmp_path / "home")
    paths.make_folder(paths.cluster("c0ffee"))
    create_key(paths.key("c0ffee"))


@pytest.fixture
def shown(monkeypatch):
    """What the terminal showed when the network was first asked; empty until then."""
    seen, older = [], {*threading.enumerate()} - {threading.current_thread()}

    def ask(*_, **__):
        # A thread of an earlier command may still try its connection again.
        if threading.current_thread() not in older:
            seen.append(sys.stderr.shown())
        raise NetworkReachedError

    monkeypatch.setattr(socket.socket, "connect", ask)
    monkeypatch.setattr(socket, "getaddrinfo", ask)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield seen
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("home")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_shows_something_before_it_asks_a_network(name, shown, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())  # here: pytest sets its own before each test
    with pytest.raises(BaseException):  # noqa: B017, PT011  whatever it makes of a network that ends it
        dlcloud.main([name, *COMMANDS[name]], standalone_mode=False)
    assert shown, "it asked no network"
    assert shown[0].strip(), "it had shown nothing"


@pytest.mark.usefixtures("home")
def test_a_page_shows_that_it_is_drawn(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stderr", Terminal())
    page = tmp_path / "page.html"
    dlcloud.main(["cost-report", "--all", "--html", str(page)], standalone_mode=False)
    assert "drawing ..." in sys.stderr.shown()
    assert page.is_file()
