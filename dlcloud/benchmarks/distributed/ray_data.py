"""Batch inference with Ray Data: a head and workers, one model a node, images a second.

    python -m benchmarks.distributed.ray_data --copies 50

The model is a small VGG, trained here on four fifths of scikit-learn's 1,797 digits and run by ONNX Runtime;
the others are repeated to make the data. Its predictions must equal those of the head alone. Ray's servers
prove each other a token, which is made of the job's secret.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from ..harness.digits import load_folds
from ..quantization import digits
from .job import Job, Others, Service, read_job, report, run_job

SEED = 0
TIMES = 3
"""Passes over the data that are printed, after one that is not."""

STORE_BYTES = 256 << 20
"""Of Ray's object store on each node."""

ASK_S = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    job = read_job()
    os.environ |= variables_of(job)
    head, others = services_of(job)
    try:
        return run_job(job, head=head, others=others, work=partial(_infer, job, arguments))
    finally:
        shutil.rmtree(_folder(job), ignore_errors=True)


def variables_of(job: Job) -> dict[str, str]:
    """Return Ray's variables: no reports to its makers, and a token that its servers and clients prove."""
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": hashlib.sha256(job.secret.encode()).hexdigest(),
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }


def services_of(job: Job) -> tuple[list[Service], list[Service]]:
    """Return Ray's servers of the head, and of each other node.

    One is healthy when the control store answers it; `_wait_for_nodes` then waits until all have joined.
    """
    head = ["--head", "--port", str(job.head_ports[0]), "--include-dashboard", "false"]
    head += ["--temp-dir", str(_folder(job))]
    return [_service(job, head)], [_service(job, ["--address", _address(job)])]


def _service(job: Job, words: Sequence[str]) -> Service:
    program = str(Path(sys.executable).with_name("ray"))
    common = ["--block", "--node-ip-address", job.address, "--num-cpus", str(job.slots)]
    common += ["--object-store-memory", str(STORE_BYTES), "--min-worker-port", "0", "--max-worker-port", "0"]
    common += ["--dashboard-agent-listen-port", str(job.node_ports[0])]
    return Service(
        name="ray",
        command=[program, "start", *words, *common, "--disable-usage-stats"],
        environment=os.environ,
        is_healthy=partial(_is_healthy, _address(job), os.environ),
    )


def _is_healthy(address: str, environment: Mapping[str, str]) -> bool:
    """Ask the head's control store: `ray health-check` exits with 0 if it answers."""
    words = [str(Path(sys.executable).with_name("ray")), "health-check", "--address", address]
    try:
        done = subprocess.run(words, env=dict(environment), capture_output=True, timeout=ASK_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


class Classifier:
    """Ray Data's actor: one a node, with the model loaded once."""

    def __init__(self, model: bytes, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Add the predictions to images (n, 1, 8, 8) float32."""
        name = self._session.get_inputs()[0].name
        (logits,) = self._session.run(None, {name: batch["image"]})
        return {"place": batch["place"], "digit": logits.argmax(axis=1)}


def _infer(job: Job, arguments: argparse.Namespace, _: Others) -> None:
    import ray  # type: ignore[import-not-found]  # noqa: PLC0415 - it reads its variables

    fold = load_folds(SEED)[0]
    model = _model(job)
    own = Classifier(model, job.slots)({"image": fold.held_out, "place": np.arange(len(fold.held_out))})[
        "digit"
    ]
    ray.init(address=_address(job), _node_ip_address=job.address, log_to_driver=False)
    try:
        _wait_for_nodes(ray, job)
        images = np.tile(fold.held_out, (arguments.copies, 1, 1, 1))
        items = [{"image": image, "place": place} for place, image in enumerate(images)]
        data = ray.data.from_items(items, override_num_blocks=4 * job.nodes)
        ray.data.DataContext.get_current().enable_progress_bars = False
        _report(predict(data, model, job, arguments.batch), own, arguments.copies, fold.held_out_labels)
        for _time in range(TIMES):
            began = time.perf_counter()
            predict(data, model, job, arguments.batch)
            report(f"images/s: {len(images) / (time.perf_counter() - began):.1f}")
    finally:
        ray.shutdown()


def predict(data: Any, model: bytes, job: Job, batch: int) -> np.ndarray:  # noqa: ANN401 - it ships no types
    """Return the predictions by place, of one actor a node."""
    predicted = data.map_batches(
        Classifier,
        fn_constructor_args=(model, job.slots),
        batch_size=batch,
        concurrency=job.nodes,
        num_cpus=job.slots,
    )
    rows = {int(row["place"]): int(row["digit"]) for row in predicted.take_all()}
    return np.array([rows[place] for place in range(len(rows))])


def _model(job: Job) -> bytes:
    """Return the trained digits as ONNX; they are trained once a job, with NumPy."""
    path = job.folder / "digits.onnx"
    if not path.exists():
        path.write_bytes(digits.export(digits.train(load_folds(SEED)[0], SEED)).SerializeToString())
    return path.read_bytes()


def _wait_for_nodes(ray: Any, job: Job) -> None:  # noqa: ANN401 - as above
    """Wait until every node is alive: the health check of the whole."""
    while True:
        alive = sum(node["Alive"] for node in ray.nodes())
        if alive >= job.nodes:
            report(f"{alive} of {job.nodes} nodes are alive")
            return
        time.sleep(1)


def _report(predicted: np.ndarray, own: np.ndarray, copies: int, labels: np.ndarray) -> None:
    report(f"accuracy: {np.mean(own == labels):.4f}")
    if not np.array_equal(predicted, np.tile(own, copies)):
        raise SystemExit("predictions on the nodes are not those of the head alone")
    report("predictions on the nodes: equal to those of the head alone")


def _address(job: Job) -> str:
    return f"{job.head_address}:{job.head_ports[0]}"


def _folder(job: Job) -> Path:
    """Return the folder of Ray's session; the paths of its sockets must be short."""
    return Path("/tmp") / f"ray-{job.rank}-{hashlib.sha256(job.secret.encode()).hexdigest()[:8]}"  # noqa: S108


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--copies", type=int, default=50, help="of the 360 images (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=256, help="images of a call (default: %(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
