"""Rebuild the table of what instance types are like: dlcloud/prediction/types.csv.

    python tests/performance/type_table.py FOLDER REPOSITORY [--output FILE]

FOLDER has `hardware.csv`, `bandwidth.csv` and `llm.csv.gz` of SpareCores/sc-inspector-data, REPOSITORY is a
checkout of it. Families that FOLDER has no measurements of are kept back, to judge predictions: nothing of
theirs is read from REPOSITORY either. Each reference job is completed
to all types with a listed processor by a Gaussian process over their hardware; a test that was cut off on a
type is taken to be as slow as the slowest that was kept, at most. Needs NumPy. The same code completes the
tables that `prediction.py` evaluates, with families and models left out.
"""

import csv
import gzip
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import median, variance

import numpy as np
from common import ROOT, parser_of
from other_jobs import read_other_jobs

from dlcloud.prediction.measured_types import (
    LEVELS,
    NOISES,
    RULE,
    Kind,
    Reference,
    Traits,
    TypeRow,
    TypeTable,
    covariance,
    find_processor,
    format_table,
)

NOISE = 0.01
"""Variance of a test on a type, in addition to that of its samples."""
FEWEST_TYPES = 150
"""A reference is a test that so many types have run."""
UNMEASURED_VARIANCE = 0.02
MOST_TURBO = 1.8
"""The greatest clock with all cores busy, in base clocks."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """What a folder holds: types, tests by name, and log throughput (tests, types); NaN where not run.

    `noises` are the variances of the samples, as logarithms.
    """

    traits: list[Traits]
    references: list[Reference]
    models: list[str]
    levels: np.ndarray
    noises: np.ndarray
    cut_offs: np.ndarray
    as_of: str
    shared: np.ndarray

    @property
    def names(self) -> list[str]:
        return [traits.name for traits in self.traits]


def read_rows(folder: Path, name: str) -> list[dict[str, str]]:
    path = folder / name
    content = path.read_bytes()
    text = (gzip.decompress(content) if name.endswith(".gz") else content).decode()
    return list(csv.DictReader(text.splitlines()))


def language_test(row: dict[str, str]) -> Reference:
    """Return the test of llama-bench that a row of `llm.csv.gz` is of."""
    prompt, generated = int(row["prompt_tokens"]), int(row["generated_tokens"])
    short = row["model"].split("-")[0].split(".")[0].lower() + f"-{int(row['parameters']) // 10**6}M"
    return Reference(
        name=f"{short}-{'p' if prompt else 'g'}{prompt or generated}",
        kind=Kind.PROMPT if prompt else Kind.GENERATION,
        file_bytes=int(row["file_bytes"]),
        tokens=prompt or generated,
    )


def read_traits(folder: Path) -> list[Traits]:
    traits = []
    for row in read_rows(folder, "hardware.csv"):
        processor = find_processor(row["model"])
        cores = int(row["sockets"] or 0) * int(row["cores_per_socket"] or 0)
        if processor is None or not cores or int(row["gpus"] or 0):
            continue
        traits.append(
            Traits(
                name=row["type"],
                processor=processor,
                cores=cores,
                threads_per_core=int(row["threads_per_core"] or 1),
                sockets=int(row["sockets"]),
            )
        )
    return traits


def check_clocks(folder: Path) -> str:
    """Return how the listed clocks compare with the base clocks that the types stated.

    BogoMIPS are twice the base clock on x86; Arm states another counter, so that its clocks are not checked.

    Raises:
        SystemExit: A clock with all cores busy is below the base clock, or above any turbo.
    """
    ratios: dict[str, float] = {}
    for row in read_rows(folder, "hardware.csv"):
        processor = find_processor(row["model"])
        if processor is None or row["architecture"] != "x86_64" or not row["bogomips"]:
            continue
        ratios[processor.name] = processor.ghz / (float(row["bogomips"]) / 2000)
    wrong = [f"{name}: {ratio:.2f}" for name, ratio in ratios.items() if not 0.995 <= ratio <= MOST_TURBO]
    if wrong:
        sys.exit(f"clocks that cannot be, as multiples of the base clock: {', '.join(wrong)}")
    span = f"{min(ratios.values()):.2f} to {max(ratios.values()):.2f}"
    return f"clocks of {len(ratios)} processors: {span} of their base clocks"


def given_families(folder: Path) -> set[str]:
    """Return the families that are not kept back."""
    rows = [*read_rows(folder, "bandwidth.csv"), *read_rows(folder, "llm.csv.gz")]
    return {row["type"].partition(".")[0] for row in rows}


def read_data(
    folder: Path, hardware: Path | None = None, repository: Path | None = None, *, kept_back: bool = False
) -> Data:
    """Return what the folders hold; `kept_back`: also other jobs on families that are kept back."""
    traits = read_traits(hardware or folder)
    index = {one.name: i for i, one in enumerate(traits)}
    samples: dict[Reference, dict[int, float]] = defaultdict(dict)
    scatter: dict[tuple[Reference, int], float] = {}
    models: dict[Reference, str] = {}
    as_of = ""
    for row in read_rows(folder, "llm.csv.gz"):
        if row["gpu"] or row["type"] not in index:
            continue
        reference = language_test(row)
        rates = [log(float(row[f"tokens_s_{i}"])) for i in range(1, 6) if row[f"tokens_s_{i}"]]
        samples[reference][index[row["type"]]] = median(rates)
        scatter[reference, index[row["type"]]] = variance(rates) if len(rates) > 1 else 0.0
        models[reference] = row["model"]
        as_of = max(as_of, row["date"])
    families = given_families(folder) if repository else set()
    for reference, rates in (read_other_jobs(repository) if repository else {}).items():
        models[reference] = reference.program
        for name, rate in rates.items():
            if name in index and (kept_back or name.partition(".")[0] in families):
                samples[reference][index[name]] = log(rate)
    for i, one in enumerate(traits if repository else ()):
        clock = log(one.processor.ghz)
        samples[Reference(name=f"{RULE}-clock", kind=Kind.ONE_THREAD)][i] = clock
        by_cores = Reference(name=f"{RULE}-cores_by_clock", kind=Kind.ALL_THREADS)
        samples[by_cores][i] = log(one.cores) + clock
    models |= {one: RULE for one in samples if one.program == RULE}
    references = sorted(
        samples, key=lambda one: (one.file_bytes or 1 << 60, one.kind == "g", one.tokens, one.name)
    )
    levels = np.full((len(references), len(traits)), np.nan)
    noises = np.full(levels.shape, NOISE)
    for j, reference in enumerate(references):
        for i, level in samples[reference].items():
            levels[j, i] = level
            noises[j, i] += scatter.get((reference, i), 0.0)
    # What a language model's test was cut off at; other programs were not.
    kinds = [(one.kind, one.tokens or one.name) for one in references]
    lows = {kind: min(np.nanmin(levels[j]) for j, k in enumerate(kinds) if k == kind) for kind in kinds}
    shared = np.array([[covariance(one, other, LEVELS) for other in traits] for one in traits])
    return Data(
        traits=traits,
        references=references,
        models=[models[one] for one in references],
        levels=levels,
        noises=noises,
        cut_offs=np.array([lows[kind] for kind in kinds]),
        as_of=as_of,
        shared=shared,
    )


def complete(data: Data, tests: Sequence[int], is_used: Callable[[Traits], bool]) -> TypeTable:
    """Return the table of these tests, learned from the types that may be used, for all types."""
    used = np.array([is_used(one) for one in data.traits])
    levels = np.where(used, data.levels, np.nan)
    filled, residuals, variances = [], [], []
    ran = {
        model: ~np.isnan(levels[[j for j in tests if data.models[j] == model]]).all(axis=0)
        for model in {data.models[j] for j in tests} - {RULE}
    }
    for j in tests:
        if data.models[j] == RULE:
            filled.append(data.levels[j])
            residuals.append(np.full(len(used), np.nan))
            variances.append(np.zeros(len(used)))
            continue
        mean, residual, variance = _completed(data, j, used)
        cut_off = np.isnan(levels[j]) & ran[data.models[j]] & data.references[j].kind.is_language
        filled.append(np.where(cut_off, np.minimum(mean, data.cut_offs[j]), mean))
        residuals.append(residual)
        variances.append(variance)
    noises = _noises(data, tests, np.array(residuals), np.array(variances))
    measured = np.any(list(ran.values()), axis=0)
    rows = {
        one.name: TypeRow(
            traits=one,
            measured=bool(measured[i]),
            levels=tuple(round(float(level[i]), 2) for level in filled),
            noises=tuple(float(noise[i]) for noise in noises),
        )
        for i, one in enumerate(data.traits)
    }
    references = tuple(data.references[j] for j in tests)
    return TypeTable(as_of=data.as_of, references=references, rows=rows)


_CACHE: dict[tuple[int, int, bytes], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}


def _completed(data: Data, j: int, used: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what `_process` makes of one test by the types that may be used; each once."""
    key = (id(data), j, used.tobytes())
    if key not in _CACHE:
        _CACHE[key] = _process(data.shared, np.where(used, data.levels[j], np.nan), data.noises[j])
    return _CACHE[key]


def _process(
    shared: np.ndarray, level: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the posterior mean, the leave-one-out residuals (NaN if not run) and the posterior variance."""
    seen = np.where(~np.isnan(level))[0]
    inverse = np.linalg.inv(shared[np.ix_(seen, seen)] + np.diag(noise[seen]))
    center = level[seen].mean()
    weights = inverse @ (level[seen] - center)
    residual = np.full(len(level), np.nan)
    residual[seen] = weights / np.diag(inverse)
    across = shared[:, seen]
    variance = np.maximum(np.diag(shared) - ((across @ inverse) * across).sum(axis=1), 0)
    return center + across @ weights, residual, variance


def _noises(
    data: Data, tests: Sequence[int], residuals: np.ndarray, variances: np.ndarray
) -> list[np.ndarray]:
    """Return the standard deviation of each type, in each of `NOISES`."""
    design = np.array([one.processor.design for one in data.traits])
    cores = np.array([one.log_cores for one in data.traits])
    alike = np.exp(-2.0 * (cores[:, None] - cores) ** 2) * (0.1 + (design[:, None] == design))
    result = []
    for place in range(len(NOISES)):
        chosen = [
            a
            for a, j in enumerate(tests)
            if data.references[j].kind.noise == place and data.models[j] != RULE
        ]
        if not chosen:
            result.append(np.full(len(design), UNMEASURED_VARIANCE**0.5))  # no reference has it
            continue
        squares = np.clip(residuals[chosen], -0.7, 0.7) ** 2
        count = (~np.isnan(squares)).sum(axis=0)
        total = np.nansum(squares, axis=0)
        near = (alike @ total) / np.maximum(alike @ count, 1e-6)
        own = (total + 3 * near) / (count + 3)
        unknown = np.where(count == 0, UNMEASURED_VARIANCE + variances[chosen].mean(axis=0), 0.0)
        result.append(np.sqrt(0.003 + own + unknown))
    return result


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "dlcloud" / "prediction" / "types.csv")
    options = parser.parse_args()
    print(check_clocks(options.folder))
    data = read_data(options.folder, repository=options.repository)
    counts = (~np.isnan(data.levels)).sum(axis=1)
    tests = [j for j, count in enumerate(counts) if count >= FEWEST_TYPES]
    table = complete(data, tests, lambda _: True)
    options.output.write_text(format_table(table), "utf-8")
    measured = sum(row.measured for row in table.rows.values())
    print(f"{len(table.rows)} types ({measured} measured), {len(tests)} references, until {table.as_of}")


if __name__ == "__main__":
    main()
