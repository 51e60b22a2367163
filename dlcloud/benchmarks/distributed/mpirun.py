"""Run a program under Open MPI on all nodes, without SSH between them.

    python -m benchmarks.distributed.mpirun -m benchmarks.distributed.mpi_train --steps 60

`mpirun` starts a daemon on each node by a remote shell. Here that is `mpi_agent`, which hands the daemon's
command line to this program on the head, which sends it to the same program on the node. One process runs on
each GPU, or on each node where there is none.
"""

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
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

from ..nodes.channel import Channel
from .job import Job, read_job
from .lifecycle import Others, run_job
from .services import ServiceError

AGENT_SOCKET, AGENT_KEY = "MPI_AGENT_SOCKET", "DLCLOUD_SECRET"
GRACE_S = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    job = read_job()
    program = [sys.executable, *(sys.argv[1:] if argv is None else argv)]
    daemons = Daemons()
    try:
        return run_job(job, head=(), others=(), work=partial(_run, job, program), handle=daemons.start)
    finally:
        daemons.stop()


@dataclass(slots=True)
class Daemons:
    """Open MPI's daemons on this node."""

    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    is_stopping: bool = False

    def start(self, message: dict[str, Any], _: Channel) -> None:
        """Start the daemon whose command line the head sent."""
        process = subprocess.Popen(["/bin/sh", "-c", str(message["run"])], start_new_session=True)
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


def _run(job: Job, program: Sequence[str], others: Others) -> None:
    """Run mpirun on the head, and hand its daemons' command lines to the other nodes."""
    with tempfile.TemporaryDirectory(prefix="mpi-") as folder:
        path = str(Path(folder, "agent"))
        with Listener(path, "AF_UNIX", backlog=job.nodes, authkey=job.secret.encode()) as listener:
            threading.Thread(target=_forward, args=(listener, others), daemon=True).start()
            status = subprocess.run(
                command_of(job, program), env=variables_of(job, path), check=False
            ).returncode
    if status:
        raise ServiceError(f"mpirun ended with status {status}")


def _forward(listener: Listener, others: Others) -> None:
    with suppress(OSError, EOFError):
        while True:
            with listener.accept() as connection:
                rank, line = json.loads(connection.recv_bytes())
                others.channels[rank].send(run=line)


def host_name(rank: int) -> str:
    """Return the name under which mpirun knows a node; only the agent resolves it."""
    return f"node{rank}" if rank else socket.gethostname()


def command_of(job: Job, program: Sequence[str]) -> list[str]:
    gpus = job.slots if any(Path("/dev").glob("nvidia[0-9]*")) else 1
    hosts = ",".join(f"{host_name(rank)}:{gpus}" for rank in range(job.nodes))
    words = [shutil.which("mpirun") or "mpirun", "--leave-session-attached", "--host", hosts]
    return [*words, "-n", str(gpus * job.nodes), "--map-by", "node", "--bind-to", "none", *program]


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
    root = {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    return {
        **os.environ,
        **(root if os.geteuid() == 0 else {}),
        **(rehearsal if job.is_on_loopback else {}),
        AGENT_SOCKET: path,
        "PRTE_MCA_plm_ssh_agent": f"{sys.executable} -m benchmarks.distributed.mpi_agent",
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    }


if __name__ == "__main__":
    sys.exit(main())
