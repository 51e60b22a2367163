"""`dlcloud logs`: which run, how much of it, and of an instance that ends while it is asked."""

import subprocess
import time
from contextlib import closing, nullcontext
from datetime import timedelta
from types import SimpleNamespace

import pytest

from dlcloud.analysis.result import RunState
from dlcloud.app.clusters import logs
from dlcloud.app.clusters.logs import run as print_log
from dlcloud.app.terminal.screen import TerminalFilter
from dlcloud.launch.remote_jobs import folder_of, log_command
from dlcloud.model.cluster import Member
from dlcloud.model.errors import RecipeError, UnreachableError
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.runs import Runs
from tests.fakes.clock import FakeClock
from tests.fakes.samples import THEN, cluster, instance, run

NAME = "sample-1a2b"


class Connections:
    """Dials instances by their id; each prints its pieces, then breaks unless it is whole."""

    def __init__(self, pieces, *, whole=()):
        self.pieces, self.whole, self.on_break = pieces, whole, lambda: None

    def admitting_dialer(self, _):
        return self

    def dial(self, endpoint):
        return SimpleNamespace(stream=lambda _: self._stream(endpoint.instance_id))

    def _stream(self, name):
        yield from self.pieces[name]
        if name not in self.whole:
            self.on_break()
            raise UnreachableError(f"{name}: the connection broke: the server hung up")


@pytest.fixture
def context(tmp_path):
    with closing(Database(tmp_path / "store.sqlite")) as database:
        clusters = Clusters(database)
        clusters.add(cluster(NAME))
        yield SimpleNamespace(
            clusters=clusters,
            accounts=SimpleNamespace(verify=lambda *_, **__: None),
            forward_command=lambda _: None,
            runs=Runs(database),
            clock=FakeClock(),
            console=SimpleNamespace(waiting=nullcontext),
            paths=SimpleNamespace(run_log=lambda name: tmp_path / f"{name}.log"),
        )


def begin(context, *names):
    """Store runs that go on, one an instance, in this order."""
    members = [Member(instance=instance(f"i-{name}")) for name in names]
    context.clusters.put_members("c0ffee", members)
    for name in names:
        context.runs.add(run(name, instance_id=f"i-{name}", state=RunState.RUNNING, started_at=THEN))


def end(context, name, state=RunState.DONE, log=None):
    context.runs.end(name, state, 0, THEN)
    if log is not None:
        context.paths.run_log(name).write_text(log)


def printed(context, connections, name, capfdbinary):
    context.machines = connections
    print_log(context, run=name, follow=False, output="")
    return capfdbinary.readouterr().out.decode()


def test_the_rest_of_a_log_comes_from_the_copy(context, capfdbinary):
    begin(context, "left")
    connections = Connections({"i-left": [b"step 1\n", b"step 2\n"]})
    connections.on_break = lambda: end(context, "left", log="step 1\nstep 2\nstep 3\n")
    assert printed(context, connections, NAME, capfdbinary) == "step 1\nstep 2\nstep 3\n"


@pytest.mark.parametrize("state", [RunState.DONE, RunState.LOST])
def test_an_instance_that_leaves_at_once_gives_way_to_one_that_stays(context, capfdbinary, state):
    begin(context, "stays", "leaves")
    connections = Connections({"i-stays": [b"step 1\n"], "i-leaves": []}, whole={"i-stays"})
    connections.on_break = lambda: end(context, "leaves", state)
    assert printed(context, connections, NAME, capfdbinary) == "step 1\n"


def test_an_instance_that_runs_and_does_not_answer_is_an_error(context, capfdbinary):
    begin(context, "silent")
    with pytest.raises(UnreachableError, match="broke"):
        printed(context, Connections({"i-silent": [b"step 1\n"]}), NAME, capfdbinary)
    assert sum(context.clock.slept) == 10


@pytest.mark.parametrize(
    ("tail", "printed"), [(0, ""), (1, "c\n"), (2, "b\nc\n"), (9, "a\nb\nc\n"), (None, "a\nb\nc\n")]
)
def test_the_last_lines_of_a_log(context, capfdbinary, tail, printed):
    begin(context, "one")
    context.paths.run_log("one").write_text("a\nb\nc\n")
    print_log(context, run="one", tail=tail, output="text")
    assert capfdbinary.readouterr().out.decode() == printed


def test_the_last_lines_of_a_run_under_way_come_first(tmp_path):
    (tmp_path / "log").write_text("a\nb\nc\n")
    following = log_command(run("one"), follow=True, tail=2).replace(folder_of(run("one")), str(tmp_path))
    begin_at = subprocess.run(
        ["sh", "-c", f"echo {following.partition(' log ')[2]}"], capture_output=True, text=True, check=True
    )
    assert begin_at.stdout == "2\n"
    assert log_command(run("one"), follow=False, tail=2).startswith("tail -n 2 ")


def test_what_was_printed_since_a_moment(context, capfdbinary):
    begin(context, "one")
    log = context.paths.run_log("one")
    log.write_text("a\nb\nc\n")
    now = context.clock.now().timestamp()
    for since_s, expected in ((5, "c\n"), (60, "b\nc\n"), (600, "a\nb\nc\n")):
        log.with_name("log.times").write_text(f"{now - 90:.0f} 2\n{now - 10:.0f} 4\n{now - 2:.0f} 6\n")
        print_log(context, run="one", since_s=since_s, output="text")
        assert capfdbinary.readouterr().out.decode() == expected
    log.with_name("log.times").unlink()
    print_log(context, run="one", since_s=5, output="text")
    assert capfdbinary.readouterr().out.decode() == "a\nb\nc\n"


@pytest.mark.parametrize(("since_s", "expected"), [(5, "c\n"), (60, "b\nc\n"), (600, "a\nb\nc\n")])
def test_what_a_run_under_way_has_printed_since_a_moment(tmp_path, since_s, expected):
    (tmp_path / "log").write_text("a\nb\nc\n")
    now = time.time()
    (tmp_path / "log.times").write_text(f"{now - 90:.0f} 2\n{now - 10:.0f} 4\n{now - 2:.0f} 6\n")
    command = log_command(run("one"), follow=False, since_s=since_s)
    command = command.replace(folder_of(run("one")), str(tmp_path))
    assert (
        subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout == expected
    )


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"error: disk full\rok\n"], b"error: disk full\nok\n"),
        ([b"10%\r", b"20%\r\n"], b"10%\n20%\n"),
        ([b"one\r\n", b"two\r", b"\nthree\n"], b"one\ntwo\nthree\n"),
        ([b"a\r\r\nb"], b"a\nb"),
        ([b"secret\r\x1b[2K\x1b[1Ahidden\n"], b"secret\n[2K[1Ahidden\n"),
    ],
)
def test_a_carriage_return_hides_no_line_on_a_terminal(pieces, shown):
    shown_all = TerminalFilter(shows_overwritten=True)
    assert b"".join(map(shown_all.filter, pieces)) == shown


def test_logs_of_the_beginning_of_a_name_are_those_of_the_newest_cluster(tmp_path):
    clusters = [SimpleNamespace(name=f"train-{end}", cluster_id=end) for end in ("aa", "bb")]
    runs = [
        run(
            f"train-{end}-1",
            cluster_id=end,
            cluster_name=f"train-{end}",
            started_at=THEN + timedelta(days=day),
        )
        for day, end in enumerate(("aa", "bb"))
    ]
    context = SimpleNamespace(
        clusters=SimpleNamespace(all=lambda: clusters, active=list),
        runs=SimpleNamespace(own=lambda: runs),
        paths=SimpleNamespace(run_log=lambda _: tmp_path),
    )
    assert logs._find(context, "train").run_id == "train-bb-1"
    with pytest.raises(RecipeError, match="no run other"):
        logs._find(context, "other")
