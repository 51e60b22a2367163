"""Servers of a job over several nodes: started in order, each by its health check, and stopped in reverse."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dlcloud.benchmarks.distributed import mpirun
from dlcloud.benchmarks.distributed.job import Job, Service, ServiceError, read_job, run_job, run_services
from dlcloud.benchmarks.nodes.node import free_ports

SERVER = """
import pathlib, signal, sys, time
name, log = sys.argv[1:]
def stop(*_):
    with open(log, "a") as file: file.write(f"{name} stopped\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
with open(log, "a") as file: file.write(f"{name} started\\n")
time.sleep(600)
"""


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.touch()
    return path


def service(name, log, script=SERVER, *, is_healthy=None):
    command = [sys.executable, "-c", textwrap.dedent(script), name, str(log)]
    own = lambda: f"{name} started" in log.read_text().splitlines()  # noqa: E731
    return Service(name=name, command=command, environment=os.environ, is_healthy=is_healthy or own)


def jobs_of(nodes, tmp_path):
    ports = free_ports(3)
    shared = {"nodes": nodes, "addresses": ["127.0.0.1"] * nodes, "head_ports": ports, "node_ports": ports}
    for rank in range(nodes):
        (tmp_path / str(rank)).mkdir()
    return [
        Job(rank=rank, secret="s" * 32, slots=1, folder=tmp_path / str(rank), **shared)
        for rank in range(nodes)
    ]


def run_both(tmp_path, **services):
    """Run a job on two nodes; return the statuses of the head and of the other one."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda one: run_job(one, **services), jobs_of(2, tmp_path)))


def test_a_server_starts_after_the_one_before_and_stops_before_it(log, tmp_path):
    with run_services([service("first", log), service("second", log)], tmp_path):
        assert log.read_text().splitlines() == ["first started", "second started"]
    assert log.read_text().splitlines()[2:] == ["second stopped", "first stopped"]


def test_a_server_that_ends_is_named_with_its_log_and_others_stop(log, tmp_path):
    broken = service("broken", log, "print('no such port'); raise SystemExit(3)", is_healthy=lambda: False)
    failure = pytest.raises(ServiceError, match="no such port\nbroken ended with status 3")
    with failure, run_services([service("first", log), broken], tmp_path):
        pytest.fail("it must not begin")
    assert log.read_text().splitlines() == ["first started", "first stopped"]


def test_a_server_that_never_gets_healthy_is_stopped(log, tmp_path):
    failure = pytest.raises(ServiceError, match="slow not healthy in 0 s")
    slow = service("slow", log, is_healthy=lambda: False)
    with failure, run_services([slow], tmp_path, within_s=0):
        pytest.fail("it must not begin")


def kill_by(log):
    """Kill the server that wrote its process id to a file beside the log."""
    os.kill(int(log.with_name("pid").read_text()), signal.SIGKILL)


def with_pid(name, log):
    script = SERVER.replace(
        "def stop", "pathlib.Path(log).with_name('pid').write_text(str(os.getpid()))\ndef stop"
    )
    return service(name, log, script.replace("import pathlib", "import os, pathlib"))


def test_a_server_that_ends_fails_the_work_that_goes_on_without_it(log, tmp_path):
    failure = pytest.raises(ServiceError, match="first ended with status -9")
    ended = threading.Event()
    services = [with_pid("first", log), service("second", log)]
    with failure, run_services(services, tmp_path, on_failure=ended.set):
        kill_by(log)
        assert ended.wait(60)
    assert log.read_text().splitlines()[2:] == ["second stopped"]


def test_a_server_of_another_node_that_ends_fails_that_node(log, tmp_path, capfd):
    head, other = jobs_of(2, tmp_path)
    with ThreadPoolExecutor(1) as pool:
        others = [with_pid("other", log)]
        follower = pool.submit(run_job, other, head=[], others=others, work=lambda _: None)

        def work(_):
            kill_by(log)
            follower.result(60)

        run_job(head, head=[], others=[], work=work)
    assert follower.result() == 1
    assert "other ended with status -9" in capfd.readouterr().err


def test_the_others_start_after_the_head_and_stop_before_it(log, tmp_path):
    def work(_):
        with log.open("a") as file:
            file.write("work\n")

    services = {"head": [service("head", log)], "others": [service("other", log)]}
    assert run_both(tmp_path, **services, work=work)[0] == 0
    expected = ["head started", "other started", "work", "other stopped", "head stopped"]
    assert log.read_text().splitlines() == expected


def test_servers_of_the_others_stop_where_the_work_fails(log, tmp_path):
    def work(_):
        raise ServiceError("it failed")

    assert run_both(tmp_path, head=[], others=[service("other", log)], work=work)[0] == 1
    assert log.read_text().splitlines() == ["other started", "other stopped"]


def test_a_program_outside_of_a_job_says_what_it_needs():
    with pytest.raises(SystemExit, match="there are no nodes"):
        read_job({})


def test_mpirun_names_hosts_that_only_its_agent_resolves(tmp_path):
    words = mpirun.command_of(jobs_of(3, tmp_path)[0], ["python", "train.py"])
    hosts = words[words.index("--host") + 1].split(",")
    assert [host.partition(":")[0] for host in hosts[1:]] == ["node1", "node2"]
    assert words[-2:] == ["python", "train.py"]


@pytest.mark.parametrize(
    ("words", "per_node", "program"),
    [
        (["train.py", "--per-node", "3"], 0, [sys.executable, "train.py", "--per-node", "3"]),
        (["-m", "train", "--steps", "3"], 0, [sys.executable, "-m", "train", "--steps", "3"]),
        (["--per-node", "8", "./solver", "in.dat"], 8, ["./solver", "in.dat"]),
    ],
)
def test_mpirun_runs_python_or_any_other_program(words, per_node, program):
    assert mpirun.read_arguments(words) == (per_node, program)


def test_processes_of_mpi_run_in_the_folder_of_their_own_node(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    daemons = mpirun.Daemons()
    daemons.start({"run": f'cd / && cd "${mpirun.FOLDER}" && touch here'}, None)
    daemons.stop()
    assert (tmp_path / "here").exists()


@pytest.mark.parametrize("words", [[], ["--per-node", "2"], ["--per-node", "x", "a"], ["--steps", "2", "a"]])
def test_mpirun_without_a_program_or_a_number_ends_with_usage(words):
    with pytest.raises(SystemExit, match="2"):
        mpirun.read_arguments(words)


@pytest.mark.parametrize("module", ["job", "mpirun"])
def test_what_every_recipe_uses_imports_the_standard_library_only(module):
    code = f"import sys; import benchmarks.distributed.{module}; assert 'numpy' not in sys.modules"
    folder = Path(mpirun.__file__).parents[2]
    subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"], check=True
    )
