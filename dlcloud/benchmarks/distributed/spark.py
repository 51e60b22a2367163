"""Spark standalone on the nodes of a job: a master on the head, a worker on every node, one shared secret.

Spark authenticates its connections by the secret (`spark.authenticate`); the master's JSON page names the
workers.
"""

import json
import os
import sys
import urllib.request
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.error import URLError

import pyspark  # type: ignore[import-not-found]

from .job import Job, Service

HOME = Path(pyspark.__file__).parent
ANSWER_S = 5.0
MIB = 1 << 20


def master_url(job: Job) -> str:
    return f"spark://{job.head_address}:{job.head_ports[0]}"


def services_of(job: Job, environment: Mapping[str, str]) -> tuple[list[Service], list[Service]]:
    """Return the servers of the head, and of each other node, with variables that executors get, too."""
    settings = write_settings(job)
    variables = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_CONF_DIR": str(settings),
        "SPARK_LOCAL_IP": job.address,
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
        **environment,
    }
    page = f"http://{job.head_address}:{job.head_ports[1]}/json/"
    program = [str(HOME / "bin" / "spark-class")]
    deploy = "org.apache.spark.deploy"
    master = Service(
        name="master",
        command=[
            *program,
            f"{deploy}.master.Master",
            *_at(job.address, job.head_ports[0], job.head_ports[1]),
        ],
        environment=variables,
        is_healthy=lambda: read_page(page).get("status") == "ALIVE",
    )
    memory = ["--memory", f"{worker_memory_mib(job)}m", "--cores", str(job.slots)]
    place = _at(job.address, job.node_ports[0], job.node_ports[1])
    worker = Service(
        name="worker",
        command=[
            *program,
            f"{deploy}.worker.Worker",
            *place,
            *memory,
            "--work-dir",
            str(job.folder / "spark"),
            master_url(job),
        ],
        environment=variables,
        is_healthy=partial(_is_registered, page, f"{job.address}:{job.node_ports[0]}"),
    )
    return [master, worker], [worker]


def write_settings(job: Job) -> Path:
    """Write Spark's defaults, which hold the secret, for this user alone; return their folder."""
    folder = job.folder / "spark-settings"
    folder.mkdir(exist_ok=True)
    path = folder / "spark-defaults.conf"
    path.touch(mode=0o600)
    secret = f"spark.authenticate true\nspark.authenticate.secret {job.secret}\n"
    path.write_text(f"{secret}spark.network.crypto.enabled true\n", encoding="utf-8")
    return folder


def worker_memory_mib(job: Job) -> int:
    """Return half of the memory of this node; nodes of a rehearsal share it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB
    return total // 2 // (4 * job.nodes if job.is_on_loopback else 1)


def read_page(url: str) -> dict[str, object]:
    """Return the master's state; empty while it does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:  # noqa: S310 - of this job's head
            state = json.load(answer)
    except (URLError, OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _is_registered(page: str, name: str) -> bool:
    workers = read_page(page).get("workers")
    alive = (
        [worker for worker in workers if worker.get("state") == "ALIVE"] if isinstance(workers, list) else []
    )
    return name in {f"{worker['host']}:{worker['port']}" for worker in alive}


def _at(address: str, port: int, page_port: int) -> list[str]:
    return ["--host", address, "--port", str(port), "--webui-port", str(page_port)]
