"""Run a program under Open MPI on all nodes, without SSH between them.

    python -m benchmarks.distributed.mpirun train.py --steps 60
    python -m benchmarks.distributed.mpirun --per-node 8 ./solver input.dat

`mpirun` starts a daemon on each node by a remote shell. Here that is this program with `--agent`, which hands
the daemon's command line to the one on the head, which sends it to the one on the node. `--per-node` is the
number of processes; without it one runs on each GPU, or on each node where there is none. What begins with
`-m` or ends in `.py` is run by Python.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Client, Listener
from pathlib import Path
from types import FrameType
from typing import Any

from ..nodes.node import Channel
from .job import Job, Others, ServiceError, read_job, run_job

AGENT = "--agent"
AGENT_SOCKET, AGENT_KEY = "MPI_AGENT_SOCKET", "DLCLOUD_SECRET"
FOLDER = "DLCLOUD_WORK_FOLDER"
"""In which processes run: each node has one of its own, where mpirun expects that of the head."""

GRACE_S = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == [AGENT]:
        return hand_over(*words[1:])
    per_node, program = read_arguments(words)
    job = read_job()
    daemons = Daemons()
    signal.signal(signal.SIGTERM, _exit)  # so that what was made is removed
    work = partial(_run, job, program, per_node or processes_of(job))
    try:
        return run_job(job, head=(), others=(), work=work, handle=daemons.start)
    finally:
        daemons.stop()


@dataclass(slots=True)
class Daemons:
    """Open MPI's daemons on this node."""

    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    is_stopping: bool = False

    def start(self, message: dict[str, Any], _: Channel) -> None:
        """Start the daemon whose command line the head sent."""
        line, variables = str(message["run"]), {**os.environ, FOLDER: str(Path.cwd())}
        process = subprocess.Popen(["/bin/sh", "-c", line], env=variables, start_new_session=True)
        self.processes.append(process)
        threading.Thread(target=self._watch, args=(process,), daemon=True).start()

    def stop(self) -> None:
        self.is_stopping = True
        for process in self.processes:
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """End this node's program with a daemon that failed: the job must not wait for it."""
        status = process.wait()
        if status and not self.is_stopping:
            sys.stderr.write(f"Open MPI's daemon ended with status {status}\n")
            os.kill(os.getpid(), signal.SIGTERM)


def _exit(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def read_arguments(words: Sequence[str]) -> tuple[int, list[str]]:
    """Return the processes of a node, 0 for the default, and the program with its arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--per-node", type=int, default=0, metavar="N")
    has_option = bool(words) and words[0].startswith("--")
    options = parser.parse_args(words[: 2 if has_option else 0])
    program = list(words[2 if has_option else 0 :])
    if not program or options.per_node < 0:
        parser.error("name a program, and a number of processes above 0")
    is_python = program[0] == "-m" or program[0].endswith(".py")
    return options.per_node, [sys.executable, *program] if is_python else program


def processes_of(job: Job) -> int:
    """Return one for each GPU of this node, or one."""
    return job.slots if any(Path("/dev").glob("nvidia[0-9]*")) else 1


def _run(job: Job, program: Sequence[str], per_node: int, others: Others) -> None:
    """Run mpirun on the head, and hand its daemons' command lines to the other nodes."""
    with tempfile.TemporaryDirectory(prefix="mpi-") as folder:
        path = str(Path(folder, "agent"))
        with Listener(path, "AF_UNIX", backlog=job.nodes, authkey=job.secret.encode()) as listener:
            threading.Thread(target=_forward, args=(listener, others), daemon=True).start()
            status = subprocess.run(
                command_of(job, program, per_node), env=variables_of(job, path), check=False
            ).returncode
    if status:
        raise ServiceError(f"mpirun ended with status {status}")


def _forward(listener: Listener, others: Others) -> None:
    with suppress(OSError, EOFError):
        while True:
            with listener.accept() as connection:
                rank, line = json.loads(connection.recv_bytes())
                others.channels[rank].send(run=line)


def hand_over(host: str, *line: str) -> int:
    """Be mpirun's remote shell: have the node of that name, such as `node2`, run a command line."""
    secret = os.environ[AGENT_KEY].encode()
    with Client(os.environ[AGENT_SOCKET], "AF_UNIX", authkey=secret) as connection:
        connection.send_bytes(json.dumps([int(host.removeprefix("node")), " ".join(line)]).encode())
    return 0


def host_name(rank: int) -> str:
    """Return the name under which mpirun knows a node; only the agent resolves it."""
    return f"node{rank}" if rank else socket.gethostname()


def command_of(job: Job, program: Sequence[str], per_node: int = 1) -> list[str]:
    hosts = ",".join(f"{host_name(rank)}:{per_node}" for rank in range(job.nodes))
    in_folder = ["/bin/sh", "-c", f'cd "${FOLDER}" && exec "$@"', "sh"]
    words = [shutil.which("mpirun") or "mpirun", "--leave-session-attached", "--host", hosts]
    return [
        *words,
        "-n",
        str(per_node * job.nodes),
        "--map-by",
        "node",
        "--bind-to",
        "none",
        *in_folder,
        *program,
    ]


def variables_of(job: Job, path: str) -> dict[str, str]:
    """Return mpirun's variables.

    Nodes of a rehearsal talk over loopback, which Open MPI leaves out, leave each other the processors, and
    do not look for the topology of what is one machine.
    """
    rehearsal = {
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_btl_tcp_if_include": "lo",
        "OMPI_MCA_coll": "^han,adapt",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMP_NUM_THREADS": "1",
    }
    agent = f"{sys.executable} -m benchmarks.distributed.mpirun {AGENT}"
    root = {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    return {
        **os.environ,
        **(root if os.geteuid() == 0 else {}),
        **(rehearsal if job.is_on_loopback else {}),
        AGENT_SOCKET: path,
        FOLDER: str(Path.cwd()),
        "PRTE_MCA_plm_ssh_agent": agent,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        # Of Open MPI 4, which distributions have.
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
    }


if __name__ == "__main__":
    sys.exit(main())
