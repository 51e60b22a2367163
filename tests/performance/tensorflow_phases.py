"""Where a training step of TensorFlow spends its time, and how close each part is to the machine.

    PYTHON tests/performance/tensorflow_phases.py [--network vgg16] [--batch 8] [--threads 2] [--steps 5]

PYTHON is that of an environment with `dlcloud/benchmarks/requirements/tensorflow.txt`. Stock, oneDNN, and
oneDNN with the bf16 policy run in processes of their own, one after the other. Printed are medians of wall
and CPU seconds of a step, of its forward pass, of both passes, and of the weights' update alone; which share
of the engine's peak in that data type the passes reach, and of the bandwidth the update, with peaks of the
same process; the kernels of one more step that take most, by oneDNN's own log; and what each part gains over
stock. Median CPU seconds with one thread can be compared on a busy machine, too.
"""

import json
import os
import subprocess
import sys
import time
from argparse import SUPPRESS, Namespace
from collections import defaultdict
from statistics import median

from common import PYTHON, ROOT, parser_of

SETTINGS = {"stock": ("0", "fp32"), "onednn": ("1", "fp32"), "onednn bf16": ("1", "bf16-policy")}
VALUES_MOVED = 7
"""Floats of each weight by RMSProp: it, two slots and the gradient are read, it and the slots written."""
KERNELS = 8
PEAK_S = 2.0
MARK = "a step begins"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--network", default="vgg16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--inside", choices=SETTINGS, help=SUPPRESS)
    parser.add_argument("--log", action="store_true", help=SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        measure(options)
        return
    results = {}
    for setting in SETTINGS:
        results[setting] = json.loads(run_inside(setting)[-1])
        report(setting, results[setting])
        if setting != "stock":
            report_kernels(run_inside(setting, "--log"), results[setting])
    conclude(results)


def run_inside(setting: str, *more: str) -> list[str]:
    variables = {
        "TF_ENABLE_ONEDNN_OPTS": SETTINGS[setting][0],
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "ONEDNN_VERBOSE": "1" if more else "0",
    }
    done = subprocess.run(
        [PYTHON, __file__, *sys.argv[1:], "--inside", setting, *more],
        env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def measure(options: Namespace) -> None:
    """Print the figures of one setting as JSON, or with `--log` let oneDNN print its kernels of a step."""
    sys.path[0] = str(ROOT / "dlcloud")
    from benchmarks.tensorflow_cpu import training  # noqa: PLC0415  TensorFlow reads its settings now

    class Parts(training.Update):
        """The optimizer, which keeps the weights that it changes."""

        def __init__(self, optimizer, weights):
            super().__init__(optimizer, weights)
            parts.append(self)

    parts, built = [], []
    build, training.Update = training.build_network, Parts
    training.build_network = lambda *arguments: built.append(build(*arguments)) or built[0]
    precision = SETTINGS[options.inside][1]
    job = training.train(
        network=options.network, batch=options.batch, optimizer="rmsprop", seed=0, precision=precision,
        intra=options.threads, inter=1,
    )  # fmt: skip
    if options.log:
        job.step()
        print(MARK, flush=True)
        job.step()
        return
    runs = {"step": job.step, **parts_of_a_step(built[0], parts[0], job)}
    times = {name: clock(run, options.steps) for name, run in runs.items()}
    peak = training.measure_peak(precision.partition("-")[0], PEAK_S)
    figures = {
        "times": times,
        "batch": options.batch,
        "flop": job.facts["flop_per_input"] * options.batch,
        "update_bytes": 4 * VALUES_MOVED * job.facts["parameters"],
        "peak_flop_per_s": peak.flop_per_s,
        "peak_bytes_per_s": peak.bytes_per_s,
    }
    print(json.dumps(figures))


def parts_of_a_step(model, update, job) -> dict:
    """Return the forward pass, both passes, and the update alone, as functions."""
    import tensorflow as tf  # noqa: PLC0415

    images, labels = job._feed
    weights = [variable.value for variable in model.trainable_variables]
    constants = [tf.zeros_like(weight) for weight in weights]

    def loss():
        logits = tf.cast(model(images, training=True), tf.float32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))

    @tf.function
    def passes():
        with tf.GradientTape() as tape:
            value = loss()
        gradients = tape.gradient(value, weights)
        # One value of each, so that none is left out.
        return value + tf.add_n([tf.cast(tf.reshape(one, [-1])[0], tf.float32) for one in gradients])

    @tf.function
    def change():
        update(constants)

    forward = tf.function(loss)
    return {"forward": lambda: float(forward()), "passes": lambda: float(passes()), "update": change}


def clock(run, steps: int) -> dict:
    """Return medians of wall and CPU seconds of a run, after one that does not count."""
    run()
    walls, cpus = [], []
    for _ in range(steps):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {"wall": median(walls), "cpu": median(cpus), "walls": walls}


def report(setting: str, figures: dict) -> None:
    times, flop = figures["times"], figures["flop"]
    print(f"{setting}: {figures['batch'] / times['step']['wall']:.2f} images/s")
    for name, one in times.items():
        print(f"  {name:8} {one['wall']:7.3f} s, {one['cpu']:7.3f} CPU s")
    reached = flop / times["passes"]["wall"]
    moved = figures["update_bytes"] / times["update"]["wall"]
    peak, bandwidth = figures["peak_flop_per_s"], figures["peak_bytes_per_s"]
    print(f"  passes: {reached / 1e9:.0f} GFLOP/s, {reached / peak:.0%} of the peak of {peak / 1e9:.0f}")
    print(f"  update: {moved / 1e9:.1f} GB/s, {moved / bandwidth:.0%} of a pass's {bandwidth / 1e9:.1f}")
    walls = times["step"]["walls"]
    print(f"  step by step: {', '.join(f'{wall:.2f}' for wall in walls)} s", flush=True)


def report_kernels(lines: list[str], figures: dict) -> None:
    """Print which of oneDNN's kernels take most of a step, and for which shapes."""
    seconds: dict[tuple[str, ...], float] = defaultdict(float)
    for line in lines[lines.index(MARK) :]:
        cells = line.split(",")
        if "exec" in cells and cells[-1].replace(".", "").isdigit():
            at = cells.index("exec")
            _, _, kind, kernel, direction, *_ = cells[at:]
            seconds[kind, kernel, direction, cells[-2]] += float(cells[-1]) / 1000
    total = sum(seconds.values())
    kinds: dict[str, float] = defaultdict(float)
    for (kind, *_), spent in seconds.items():
        kinds[kind] += spent
    inside = ", ".join(f"{kind} {spent:.3f}" for kind, spent in sorted(kinds.items(), key=lambda p: -p[1]))
    print(f"  oneDNN's kernels take {total:.3f} s of that step: {inside}")
    for key, spent in sorted(seconds.items(), key=lambda pair: -pair[1])[:KERNELS]:
        print(f"    {spent:7.3f} s  {' '.join(key)}")
    print(f"  outside of oneDNN: {figures['times']['step']['wall'] - total:.3f} s", flush=True)


def conclude(results: dict) -> None:
    for setting in list(SETTINGS)[1:]:
        before, after = results["stock"]["times"], results[setting]["times"]
        gains = ", ".join(
            f"{name} {before[name]['wall'] / after[name]['wall']:.2f}"
            f" ({before[name]['cpu'] / after[name]['cpu']:.2f} by CPU)"
            for name in before
        )
        print(f"{setting} over stock: {gains}")


if __name__ == "__main__":
    main()
