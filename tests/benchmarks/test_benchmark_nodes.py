"""One command on several nodes, each a process of its own on an address of its own."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import dlcloud
from dlcloud.benchmarks.nodes.node import PORTS, Node, host_file_of, node_environment

ROOT = Path(dlcloud.__file__).parent
ENDS_S = 120.0


@dataclass(slots=True, kw_only=True)
class Cluster:
    """Nodes on loopback; rank 0 is started by `run`."""

    folder: Path
    nodes: int
    port: int
    last_s: float = 30.0
    rejoin_s: float = 30.0
    workers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    secret: str = field(default_factory=lambda: secrets.token_hex(16))

    def start_worker(self, rank: int, secret: str = "") -> None:
        options = ["--head", f"127.0.0.1:{self.port}", "--rank", str(rank), "--address", "127.0.0.1"]
        command = [*self._program("node", f"{rank}", secret or self.secret), *options]
        with (self.folder / f"{rank}.log").open("ab") as log:
            self.workers[rank] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def start_head(self, *line: str, forward: Sequence[str] = ()) -> subprocess.Popen[str]:
        options = ["--address", "127.0.0.1", "--port", str(self.port), "--nodes", str(self.nodes)]
        options += ["--last-seconds", str(self.last_s), "--rejoin-seconds", str(self.rejoin_s)]
        options += [word for name in forward for word in ("--forward", name)]
        command = [*self._program("head", "0", self.secret), *options, "--", *line]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *line: str, forward: Sequence[str] = ()) -> tuple[int, str]:
        head = self.start_head(*line, forward=forward)
        output, _ = head.communicate(timeout=ENDS_S)
        return head.returncode, output

    def wait_for(self, name: str) -> None:
        """Wait until the command has written a file on every node."""
        deadline = time.monotonic() + ENDS_S
        while not all((self.folder / f"{rank}/work/{name}").exists() for rank in range(self.nodes)):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def log(self, rank: int) -> str:
        return (self.folder / f"{rank}.log").read_text()

    def _program(self, name: str, rank: str, secret: str) -> list[str]:
        work = self.folder / rank / "work"
        work.mkdir(parents=True, exist_ok=True)
        (work.parent / "secret").write_text(secret)
        files = ["--secret-file", str(work.parent / "secret"), "--folder", str(work)]
        return [sys.executable, "-m", f"benchmarks.nodes.{name}", *files]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster of three nodes whose workers wait for their head."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cluster = Cluster(folder=tmp_path, nodes=3, port=port)
    try:
        for rank in (1, 2):
            cluster.start_worker(rank)
        yield cluster
    finally:
        for worker in cluster.workers.values():
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
            worker.wait()


def test_every_node_runs_the_command_with_its_rank_and_all_addresses(cluster: Cluster) -> None:
    line = "echo $RANK of $WORLD_SIZE, $DLCLOUD_NODE_ADDRESSES $MASTER_ADDR >said; echo ran"
    assert cluster.run(line, "a b") == (0, "ran a b\n")
    said = [(cluster.folder / f"{rank}/work/said").read_text().split() for rank in range(3)]
    assert [words[:3] for words in said] == [[str(rank), "of", "3,"] for rank in range(3)]
    assert {words[3] for words in said} == {"127.0.0.1,127.0.0.1,127.0.0.1"}


def test_variables_of_a_setting_reach_every_node(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETTING", "fast")
    assert cluster.run("echo $SETTING$UNSET >said", forward=["SETTING", "UNSET"])[0] == 0
    assert (cluster.folder / "2/work/said").read_text() == "fast\n"


def test_workers_take_part_in_run_after_run(cluster: Cluster) -> None:
    for number in range(3):
        assert cluster.run(f"echo {number} >>ran")[0] == 0
    assert (cluster.folder / "2/work/ran").read_text().split() == ["0", "1", "2"]


def test_the_node_that_failed_first_is_the_one_that_is_reported(cluster: Cluster) -> None:
    line = 'if [ "$RANK" = 2 ]; then echo no such module; exit 3; fi; sleep 600'
    status, output = cluster.run(line)

    assert status == 3
    assert output.splitlines() == ["no such module", "rank 2 of 3 (127.0.0.1) ended with status 3"]
    assert "[2] no such module" in cluster.log(2)


def test_a_failure_is_reported_though_child_processes_go_on(cluster: Cluster) -> None:
    line = 'if [ "$RANK" = 1 ]; then sleep 600 & kill -9 $$; fi; sleep 600'
    status, output = cluster.run(line)

    assert status == 137
    assert "rank 1 of 3 (127.0.0.1) ended with status 137" in output


def test_a_lost_node_ends_the_run(cluster: Cluster) -> None:
    head = cluster.start_head("echo >began; sleep 600")
    cluster.wait_for("began")
    cluster.workers[1].kill()
    output, _ = head.communicate(timeout=ENDS_S)

    assert head.returncode == 1
    assert "rank 1 of 3 (127.0.0.1) was lost" in output


def test_a_run_after_a_lost_node_does_not_wait_long_for_it(cluster: Cluster) -> None:
    head = cluster.start_head("echo >began; sleep 600")
    cluster.wait_for("began")
    cluster.workers[1].kill()
    head.communicate(timeout=ENDS_S)

    cluster.rejoin_s = 0.1
    assert cluster.run("true") == (1, "no connection from rank 1 within 0 s\n")
    cluster.start_worker(1)
    cluster.rejoin_s = ENDS_S
    assert cluster.run("true") == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_head_ends_all_nodes(cluster: Cluster, number: signal.Signals) -> None:
    head = cluster.start_head("trap 'echo ended >ended; exit' TERM; echo >began; while :; do sleep 0.1; done")
    cluster.wait_for("began")
    os.killpg(head.pid, number)
    head.communicate(timeout=ENDS_S)

    assert cluster.run("true") == (0, "")  # the workers end a run before they take part in the next
    assert (cluster.folder / "1/work/ended").exists()
    assert (cluster.folder / "2/work/ended").exists()


def test_a_run_ends_with_rank_0_though_others_would_go_on(cluster: Cluster) -> None:
    cluster.last_s = 0.1
    assert cluster.run('[ "$RANK" = 0 ] || sleep 600')[0] == 0


def test_a_worker_without_the_secret_takes_no_part(cluster: Cluster) -> None:
    cluster.workers[2].kill()
    cluster.workers[2].wait()
    cluster.start_worker(2, secret="another")
    head = cluster.start_head("echo started")
    with pytest.raises(subprocess.TimeoutExpired):
        head.wait(2)
    cluster.workers[2].kill()
    cluster.workers[2].wait()
    cluster.start_worker(2)
    output, _ = head.communicate(timeout=ENDS_S)

    assert (head.returncode, output) == (0, "started\n")


def test_torchrun_and_tensorflow_find_what_they_expect() -> None:
    nodes = [Node(address=f"10.0.0.{rank}", slots=4, ports=range(5000, 5000 + PORTS)) for rank in range(2)]
    variables = node_environment(1, nodes, secret="secret")

    assert variables["PET_NNODES"] == "2"
    assert variables["PET_NODE_RANK"] == "1"
    assert variables["PET_MASTER_ADDR"] == "10.0.0.0"
    assert json.loads(variables["TF_CONFIG"]) == {
        "cluster": {"worker": ["10.0.0.0:5000", "10.0.0.1:5000"]},
        "task": {"type": "worker", "index": 1},
    }
    assert host_file_of(nodes) == "10.0.0.0 slots=4\n10.0.0.1 slots=4\n"
