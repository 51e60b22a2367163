"""Rebuild the tables of published servings of language models, and say how well they predict.

    python tests/performance/serving.py SILICON_SAMPLE FOLDER [--write]

SILICON_SAMPLE is `aiconfigurator_core/systems/silicon_sample.csv` of the package aiconfigurator-core 0.12
(Apache-2.0), FOLDER has `llm.csv.gz` of SpareCores/sc-inspector-data. Errors: the model or
the GPU was left out of the fit and of the near results; or each size of model on types where llama-bench
ran the others. `--write` writes `dlcloud/prediction/serving.csv` and `gpus.csv`. Needs NumPy.

Left out, so that no row is wrong by what it counts: prefill and decode on separate GPUs; more than one
data-parallel attention rank (their concurrency counts all ranks); several nodes; GPUs that EC2 does not sell
so; rows without precision, concurrency or time, or with a concurrency that is not their batch; rows faster
than the weights can be read; rows whose weights do not fit; rows whose requests wait (the first token takes
more than 40 % of the time of all others). Of a set-up measured several times with one server, the newest.

Split, stated before looking: parts and constants were chosen by the errors of DEVELOPMENT, each left out in
turn; the other five models' errors were looked at when all was chosen.
"""

import csv
import re
from collections import defaultdict
from itertools import combinations, permutations, product
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from common import ROOT, parser_of, usd_by_type
from type_table import language_test, read_rows

from dlcloud.app.results.predict import gpu_types
from dlcloud.app.results.predict_model import SINGLE_GPUS
from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.prediction.gpu_types import predict_on_gpus
from dlcloud.prediction.measured_types import Kind, Reference
from dlcloud.prediction.predictor import Measurement
from dlcloud.prediction.serving import (
    BYTES,
    GPUS,
    MODELS,
    SERVERS,
    PublishedRow,
    ServingTable,
    demand_of,
    parts_of,
    setup_of,
    speed_of,
)

SYSTEMS = {"h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "b300_sxm": "B300"}
PRECISIONS = {"fp8": "fp8", "fp4": "int4", "int4": "int4", "bf16": "bf16"}
NAMES = {
    "DeepSeek-V3": "DeepSeek-R1",
    "Llama-3.1-8B-Instruct": "Llama-3.1-8B",
    "Qwen3-235B-A22B-FP8": "Qwen3-235B-A22B",
}
DEVELOPMENT = {"DeepSeek-R1", "gpt-oss-120b", "Llama-3.1-70B", "MiniMax-M2.5", "Qwen3-32B"}
STEPS, ROBUST = 25, 0.15
WAITING = 0.4
OF_EIGHT = {
    "H100": "p5.48xlarge",
    "H200": "p5en.48xlarge",
    "B200": "p6-b200.48xlarge",
    "B300": "p6-b300.48xlarge",
}
GOALS_S = (0.01, 0.02, 0.03, 0.05, 0.1)
FEWEST_GPUS = 2
MOST_GPUS = 8


def read_samples(path: Path) -> dict[tuple, list[tuple[str, float, float]]]:
    """Return version, ms to the first token and between tokens of what was measured, by set-up."""
    samples: dict[tuple, list[tuple[str, float, float]]] = defaultdict(list)
    with path.open() as file:
        for row in csv.DictReader(file):
            key = _key(row)
            first, token = float(row["silicon_ttft_ms"] or 0), float(row["silicon_tpot_ms"] or 0)
            if key is None or min(first, token) <= 0 or not _is_possible(key, token / 1000):
                continue
            if first <= WAITING * key[-1] * token:
                day = re.search(r"measured=([0-9-]+)", row["silicon_data_source"])
                version = f"{day[1] if day else ''} {row['backend_version']}"
                samples[key].append((version, first, token))
    return samples


def read_published(path: Path) -> list[PublishedRow]:
    rows = []
    for key, measured in sorted(read_samples(path).items()):
        newest = max(version for version, _, _ in measured)
        times = [(first, token) for version, first, token in measured if version == newest]
        model, gpu, precision, server, gpus, many, prompt, answer = key
        rows.append(
            PublishedRow(
                model=model,
                gpu=gpu,
                precision=precision,
                gpus=gpus,
                concurrency=many,
                server=server,
                prompt=prompt,
                answer=answer,
                first_token_s=median(first for first, _ in times) / 1000,
                token_s=median(token for _, token in times) / 1000,
            )
        )
    return rows


def _key(row: dict[str, str]) -> tuple | None:
    name = row["model_path"].rpartition("/")[2]
    model = NAMES.get(name, name)
    match = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
    many = int(match[1]) if match else int(row["batch_size"] or 0)
    is_plain = row["mode"] == "agg" and int(row["attention_dp_size"] or 1) <= 1 and row["pp_size"] == "1"
    is_listed = (
        row["system"] in SYSTEMS and row["precision"] in PRECISIONS and model in {m.name for m in MODELS}
    )
    if not (is_plain and is_listed and many == int(row["batch_size"] or many) > 0):
        return None
    if int(row["tp_size"]) > MOST_GPUS:
        return None
    sizes = int(row["tp_size"]), many, int(row["isl"]), int(row["osl"])
    return (model, SYSTEMS[row["system"]], PRECISIONS[row["precision"]], row["backend"], *sizes)


def _is_possible(key: tuple, token_s: float) -> bool:
    name, gpu, precision, _, gpus, *_ = key
    model = next(one for one in MODELS if one.name == name)
    least_s = model.active * BYTES[precision] / gpus / GPUS[gpu].bandwidth
    return token_s >= least_s and model.parameters * BYTES[precision] / gpus <= GPUS[gpu].memory


def fit(rows: list[PublishedRow]) -> ServingTable:
    """Return the table with the factors that leave the least errors, as logarithms; none is negative."""
    parts = [parts_of(demand_of(row), setup_of(row)) for row in rows]
    tokens, times = np.array([part for part, _ in parts]), np.log([row.first_token_s for row in rows])
    token = _fit(tokens, np.log([row.token_s for row in rows]))
    firsts = np.column_stack([[part for _, part in parts], tokens @ np.exp(token)])
    every = _fit(firsts, times)
    first = {server: _rounded(every) for server in SERVERS}
    for server in {row.server for row in rows}:
        mine = [row.server == server for row in rows]
        models = len({row.model for row in rows if row.server == server})
        own = _fit(firsts[mine], times[mine], start=every, ridge=0.01 * sum(mine) / models)
        first[server] = _rounded(own)
    return ServingTable(rows=rows, token=_rounded(token), first=first)


def _fit(parts: Any, times: Any, start: Any = None, ridge: float | None = None) -> Any:
    """Return the logarithms of the factors by robust Newton steps, drawn to `start`, or weakly to exp(-1)."""
    count = parts.shape[1]
    factors = np.full(count, -1.0) if start is None else start.copy()
    center, drawn = (-1.0, 0.005) if start is None else (start, ridge)
    damping = 0.05 + 1e-4 * len(times) if start is None else ridge
    for _ in range(STEPS):
        values = parts * np.exp(factors)
        total = values.sum(1)
        errors = np.log(total) - times
        weights = (1 + (errors / ROBUST) ** 2) ** -0.5
        shares = values / total[:, None]
        square = (shares * weights[:, None]).T @ shares + np.eye(count) * damping
        step = np.linalg.solve(square, shares.T @ (weights * errors) + drawn * (factors - center))
        factors = factors - np.clip(step, -0.7, 0.7)
    return factors


def _rounded(factors: Any) -> list[float]:
    return [float(f"{value:.4g}") for value in np.exp(factors)]


def print_floor(path: Path, rows: list[PublishedRow]) -> None:
    """Print how far apart other versions, and other servers, are at the same set-up, both measured."""
    versions: list[tuple[float, float]] = []
    for measured in read_samples(path).values():
        newest = max(version for version, _, _ in measured)
        _, first_ms, token_ms = next(one for one in measured if one[0] == newest)
        versions += [
            (log(token / token_ms), log(first / first_ms))
            for version, first, token in measured
            if version != newest
        ]
    others: dict[tuple, list[PublishedRow]] = defaultdict(list)
    for row in rows:
        others[row.model, row.gpu, row.precision, row.place].append(row)
    servers = [
        (log(one.token_s / other.token_s), log(one.first_token_s / other.first_token_s))
        for some in others.values()
        for one, other in permutations(some, 2)
    ]
    print(f"another version of the server: {_text(versions)}")
    print(f"another server: {_text(servers)}")


def evaluate(rows: list[PublishedRow]) -> None:
    for kind in ("model", "gpu", "precision", "server"):
        every: list[tuple[float, float]] = []
        later: list[tuple[float, float]] = []
        for name in sorted({getattr(row, kind) for row in rows}):
            table = fit([row for row in rows if getattr(row, kind) != name])
            errors = []
            for row in (row for row in rows if getattr(row, kind) == name):
                token, first, _ = table.estimate(demand_of(row), setup_of(row))
                errors.append((log(token / row.token_s), log(first / row.first_token_s)))
                later += errors[-1:] * (row.model not in DEVELOPMENT)
            every += errors
            print(f"{kind} {name}, {len(errors)} rows: {_text(errors)}", flush=True)
        ends = np.quantile(np.abs(every), 0.9, axis=0)
        print(
            f"{kind} left out: {_text(every)}; 90 % within a factor of exp({ends[0]:.2f}), exp({ends[1]:.2f})"
        )
        print(f"{kind} left out, models that development did not look at: {_text(later)}")


def evaluate_choice(rows: list[PublishedRow]) -> None:
    """Print how dear the type and the set-ups are that are named for a model that was left out of the fit.

    A job is a model, a precision, tokens and a goal of TPOT. Each published set-up (GPU, number, server) can
    be raced; it costs what its cheapest published concurrency within the goal costs, by the whole GPUs' price
    on demand. A race of three tries three set-ups over their concurrencies.
    """
    prices = usd_by_type()
    hourly = {gpu: prices[name] / 8 for gpu, name in OF_EIGHT.items()}
    excesses: dict[str, list[float]] = defaultdict(list)
    counts: list[int] = []
    for name in sorted({row.model for row in rows}):
        table = fit([row for row in rows if row.model != name])
        jobs: dict[tuple, list[PublishedRow]] = defaultdict(list)
        for row in (row for row in rows if row.model == name):
            jobs[row.precision, row.prompt, row.answer].append(row)
        for some, goal in product(jobs.values(), GOALS_S):
            true: dict[tuple, float] = {}
            predicted: dict[tuple, float] = {}
            for row in some:
                times = table.estimate(demand_of(row), setup_of(row))[:2]
                setup = row.gpu, row.gpus, row.server
                for costs, (token, first) in (
                    (true, (row.token_s, row.first_token_s)),
                    (predicted, times),
                ):
                    usd = hourly[row.gpu] * row.gpus * (first / row.answer + token) / row.concurrency
                    if token <= goal:
                        costs[setup] = min(costs.get(setup, usd), usd)
            if len({gpu for gpu, _, _ in true}) < FEWEST_GPUS:
                continue
            counts.append(len(true))
            ranked = sorted(predicted, key=predicted.__getitem__)
            for title, tried in (
                ("the type named", [one for one in true if ranked and one[0] == ranked[0][0]]),
                ("the set-up named", ranked[:1]),
                ("the best of three raced", ranked[:3]),
            ):
                best = min((true[one] for one in tried if one in true), default=float("inf"))
                excesses[title].append(best / min(true.values()) - 1)
    print(f"set-ups of a job: {np.mean(counts):.1f}")
    for title, some in excesses.items():
        share = np.mean(np.array(some) <= 0.1)
        print(f"{title}: within 10 % of the cheapest in {share:.0%} of {len(some)} jobs (goal 90 %)")


def _text(errors: list[tuple[float, float]]) -> str:
    token, first = np.median(np.abs(np.exp(errors) - 1), axis=0)
    return f"median error of a token {token:.1%} (goal 8 %), of the first {first:.1%} (goal 20 %)"


def gpu_levels(folder: Path, *, gpus: bool) -> dict[str, dict[Reference, float]]:
    levels: dict[str, dict[Reference, float]] = defaultdict(dict)
    for row in read_rows(folder, "llm.csv.gz"):
        if bool(row["gpu"]) == gpus:
            rates = [float(row[f"tokens_s_{i}"]) for i in range(1, 6) if row[f"tokens_s_{i}"]]
            levels[row["type"]][language_test(row)] = log(median(rates))
    return levels


def evaluate_one_request(folder: Path) -> None:
    """Print the errors of each size from the others, of generation."""
    for gpus in (False, True):
        errors: dict[int, list[float]] = defaultdict(list)
        for levels in gpu_levels(folder, gpus=gpus).values():
            for one, level in levels.items():
                others = {k: v for k, v in levels.items() if k.file_bytes != one.file_bytes}
                got = speed_of([*others], [*others.values()], one.kind, one.tokens, one.file_bytes)
                if got is not None and one.kind is Kind.GENERATION:
                    errors[one.file_bytes].append(got - level)
        every = [error for some in errors.values() for error in some]
        texts = [
            f"{size / 1e9:.2g} GB {np.median(np.abs(np.exp(e) - 1)):.0%}"
            for size, e in sorted(errors.items())
        ]
        print(
            f"{'GPU' if gpus else 'CPU'} types, one request: {', '.join(texts)};"
            f" all {np.median(np.abs(np.exp(every) - 1)):.1%},"
            f" 90 % within exp({np.quantile(np.abs(every), 0.9):.2f})"
        )


def evaluate_gpu_types(folder: Path) -> None:
    """Print the errors of each test on one GPU, predicted from one and from two others."""
    gpus, levels = gpu_types(), gpu_levels(folder, gpus=True)
    gpus = {name: gpus.get(name) or Catalog().hardware(name).accelerator for name in SINGLE_GPUS}
    for count in (1, 2):
        errors, held = [], []
        for measured, name in product(combinations(SINGLE_GPUS, count), SINGLE_GPUS):
            for test, level in levels[name].items() if name not in measured else ():
                rates = {one: exp(levels[one][test]) for one in measured if test in levels[one]}
                if len(rates) == count:
                    given = [Measurement(instance_type=one, throughput=rate) for one, rate in rates.items()]
                    (got,) = predict_on_gpus(given, gpus, [name])
                    errors.append(abs(got.throughput / exp(level) - 1))
                    held.append(got.low <= exp(level) <= got.high)
        print(f"a GPU from {count} others: {np.median(errors):.0%}, intervals hold {np.mean(held):.0%}")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("sample", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = read_published(options.sample)
    print(f"{len(rows)} published results")
    if not options.write:
        evaluate_one_request(options.folder)
        evaluate_gpu_types(options.folder)
        print_floor(options.sample, rows)
        evaluate(rows)
        evaluate_choice(rows)
        return
    table, place = fit(rows), ROOT / "dlcloud" / "prediction"
    lines = [
        "# published servings of language models, from aiconfigurator-core 0.12: see serving.LICENSE",
        f"# token {' '.join(map(str, table.token))}",
        *(f"# {server} {' '.join(map(str, table.first[server]))}" for server in SERVERS),
        "model,gpu,precision,server,gpus,concurrency,prompt,answer,first_token_ms,token_ms",
    ]
    lines += [
        f"{r.model},{r.gpu},{r.precision},{r.server},{r.gpus},{r.concurrency},{r.prompt},{r.answer},"
        f"{r.first_token_s * 1000:.4g},{r.token_s * 1000:.4g}"
        for r in rows
    ]
    (place / "serving.csv").write_text("\n".join(lines) + "\n", "utf-8")
    levels = gpu_levels(options.folder, gpus=True)
    tests = sorted(
        {one for some in levels.values() for one in some}, key=lambda one: (one.file_bytes, one.name)
    )
    lines = [
        "# llama-bench on GPU types, derived from measurements (c) Spare Cores, CC BY-SA 4.0, types.LICENSE",
        ",".join(["type", *(f"{one.name}:{one.kind}:{one.file_bytes}:{one.tokens}" for one in tests)]),
    ]
    for name, some in sorted(levels.items()):
        cells = [str(round(some[one] * 100)) if one in some else "" for one in tests]
        lines.append(",".join([name, *cells]))
    (place / "gpus.csv").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
