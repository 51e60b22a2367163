"""llama.cpp through our harness next to llama.cpp alone, and llama-bench on the same file.

    nice -n -10 PYTHON tests/performance/language.py FILE.gguf FOLDER [LLAMA_BENCH]

PYTHON has the packages of language_llamacpp.txt; FOLDER is the model in Hugging Face's format. Rounds
alternate; one thread, so that no barrier between threads is measured. With LD_LIBRARY_PATH of llama_cpp/lib
both run the same build: another one was 3 % faster.
"""

import json
import statistics
import subprocess
import sys
import time

from common import ROOT, in_turn, interval, verdict

sys.path.insert(0, str(ROOT / "dlcloud"))

from benchmarks.harness.worker import _measure
from benchmarks.language.generation import GenerationJob, make_workload
from benchmarks.language.llamacpp_engine import LlamaModel
from benchmarks.language.settings import GENERATE

ROUNDS, TOKENS = 41, 16


def main(file, folder, bench=None):
    job = GenerationJob(
        folder=folder, model=file, precision="int8", phase=GENERATE, prompt=1, generate=TOKENS, streams=1,
        threads=1, seed=0,
    )  # fmt: skip
    model = LlamaModel(job)
    workload = make_workload(job, model)
    for run in (lambda: through_harness(workload), lambda: bare(model)):
        run()  # a warm-up
    pairs = in_turn(lambda: through_harness(workload), lambda: bare(model), ROUNDS)
    report("time per token through the harness over the engine's own", [pair[::-1] for pair in pairs], 1.01)
    if bench:
        pairs = in_turn(lambda: llama_bench(bench, file), lambda: through_harness(workload), ROUNDS)
        report("llama-bench's tokens/s over ours", pairs, 1.03)


def through_harness(workload):
    measured = _measure(workload, 1.5, latencies=True)
    return measured["items"] / measured["seconds"]


def bare(model):
    tokens, seconds = 0, 0.0
    while seconds < 1.5:
        model.rewind()
        began = time.perf_counter()
        for _ in range(TOKENS):
            model.generate()
        seconds += time.perf_counter() - began
        tokens += TOKENS
    return tokens / seconds


def llama_bench(bench, file):
    command = [bench, "-m", file, "-p", "0", "-n", str(TOKENS), "-t", "1", "-r", "3", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)[0]["avg_ts"]


def report(what, rates, goal):
    ratios = [one / other for one, other in rates]
    middle, (low, high) = statistics.median(ratios), interval(ratios)
    print(f"{what}: {middle:.4f} (95 %: {low:.4f} to {high:.4f}), goal {goal}: {verdict(middle <= goal)}")
    first, second = (statistics.median(some) for some in zip(*rates, strict=True))
    print(f"  {first:.2f} and {second:.2f} tokens/s")


if __name__ == "__main__":
    main(*sys.argv[1:])
