"""Read the tests of programs other than llama-bench of a checkout of SpareCores/sc-inspector-data.

`read_other_jobs(FOLDER)` returns throughput by test and type, of the tests that are references: PassMark,
Geekbench, OpenSSL, compression, Redis, static web pages, stress-ng and lmbench's bandwidth. They stand for
what bounds a job: one thread, all threads, integers, floating point, caches, bandwidth, the kernel. FOLDER
has `data/aws/TYPE/TEST/...`; (c) Spare Cores, CC BY-SA 4.0.
"""

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from dlcloud.prediction.measured_types import Kind, Reference

ONE, ALL = Kind.ONE_THREAD, Kind.ALL_THREADS
_PASSMARK = {
    **dict.fromkeys(
        (
            *("CPU_INTEGER_MATH", "CPU_FLOATINGPOINT_MATH", "CPU_PRIME", "CPU_SORTING", "CPU_ENCRYPTION"),
            *("CPU_COMPRESSION", "CPU_PHYSICS", "CPU_MATRIX_MULT_SSE", "CPU_mm", "CPU_sse", "SUMM_CPU"),
            "ME_THREADED",
        ),
        ALL,
    ),
    **dict.fromkeys(("CPU_SINGLETHREAD", "ME_READ_S", "ME_READ_L", "ME_WRITE", "ME_LARGE"), ONE),
}
_GEEKBENCH_ALL = (
    *("File Compression", "Navigation", "HTML5 Browser", "PDF Renderer", "Photo Library", "Clang"),
    *("Text Processing", "Asset Compression", "Object Detection", "Background Blur", "Horizon Detection"),
    *("Object Remover", "HDR", "Photo Filter", "Ray Tracer", "Structure from Motion"),
)
_GEEKBENCH_ONE = ("Score", "Clang", "Object Detection", "HTML5 Browser")
_OPENSSL = {
    **dict.fromkeys(("AES-256-CBC", "ARIA-256-CBC", "SM4-CBC", "blake2b512", "sha256"), (16384,)),
    **dict.fromkeys(("sha3-256", "sha512", "shake128"), (16384,)),
    "sha256": (16384, 64),
}
_COMPRESSION = {
    **dict.fromkeys(("zstd:1:all:c", "zstd:7:all:c", "zstd:22:all:c", "zstd:1:all:d"), ALL),
    "bzip3:null:all:c": ALL,
    **dict.fromkeys(("brotli:4:1:c", "gzip:5:1:c", "lzma:5:1:c", "lz4:1:1:c", "bzip2:5:1:d"), ONE),
}
PIPELINES, PAGES = ("1", "16", "512"), ("1k", "64k", "512k")
BANDWIDTH = ("rd 1.00", "rd 512.00", "wr 512.00")


def read_other_jobs(folder: Path) -> dict[Reference, dict[str, float]]:
    """Return the throughput of each reference job on each type that ran it."""
    jobs: dict[Reference, dict[str, float]] = defaultdict(dict)
    for of_type in sorted((folder / "data" / "aws").iterdir()):
        for read in (_passmark, _geekbench, _openssl, _compression, _redis, _web, _stress, _bandwidth):
            try:
                results = [*read(of_type)]
            except (OSError, ValueError, KeyError, IndexError, TypeError):
                continue  # the test was not run, or failed
            for name, kind, value in results:
                if value > 0:
                    plain = re.sub(r"[^a-z0-9.-]+", "_", name.lower())
                    jobs[Reference(name=plain, kind=kind)][of_type.name] = value
    return jobs


def _passmark(folder: Path) -> Iterator[tuple[str, Kind, float]]:
    text = (folder / "passmark" / "stdout").read_text()
    for name, kind in _PASSMARK.items():
        match = re.search(rf"^  {name}: ([\d.e+]+)$", text, re.MULTILINE)
        if match:
            yield f"passmark-{name}", kind, float(match[1])


def _geekbench(folder: Path) -> Iterator[tuple[str, Kind, float]]:
    scores = json.loads((folder / "geekbench" / "results.json").read_text())
    for part, tests in scores.items():
        kind, names = (ONE, _GEEKBENCH_ONE) if "Single" in part else (ALL, _GEEKBENCH_ALL)
        for name in names:
            yield f"geekbench-{kind}-{name}", kind, tests[name]["score"]


def _openssl(folder: Path) -> Iterator[tuple[str, Kind, float]]:
    for row in json.loads((folder / "openssl" / "parsed.json").read_text()):
        if row["block_size"] in _OPENSSL.get(row["algo"], ()):
            yield f"openssl-{row['algo']}-{row['block_size']}", ALL, row["speed"]


def _compression(folder: Path) -> Iterator[tuple[str, Kind, float]]:
    for program, levels in json.loads((folder / "compression_text" / "stdout").read_text()).items():
        for level, row in ((level, row) for level, rows in levels.items() for row in rows):
            threads = "all" if row["threads"] > 1 else "1"
            for way in ("compress", "decompress"):
                name = f"{program}:{level}:{threads}:{way[0]}"
                if name in _COMPRESSION and row.get(way):
                    yield f"compression-{name}", _COMPRESSION[name], row[way]


def _redis(folder: Path) -> Iterator[tuple[str, Kind, float]]:
    for row in csv.DictReader((folder / "redis" / "stdout").read_text().splitlines()):
        if row["pipeline"] in PIPELINES:
            yield f"redis-{row['pipeline']}", ALL, float(row["rps"])


def _web(folder: Path) -> Iterator[tuple[str, Kind, float]]:
    best: dict[str, float] = defaultdict(float)
    for row in csv.DictReader((folder / "static_web" / "stdout").read_text().splitlines()):
        best[row["size"]] = max(best[row["size"]], float(row["rps"]))
    yield from ((f"web-{size}", ALL, best[size]) for size in PAGES)


def _stress(folder: Path) -> Iterator[tuple[str, Kind, float]]:
    rows = [line.split(",") for line in (folder / "stressngfull" / "stdout").read_text().split()]
    yield "stress-1", ONE, float(rows[0][1])
    yield "stress-all", ALL, float(rows[-1][1])


def _bandwidth(folder: Path) -> Iterator[tuple[str, Kind, float]]:
    for line in (folder / "bw_mem" / "stdout").read_text().splitlines():
        way, _, rate = line.rpartition(" ")
        if way in BANDWIDTH:
            yield f"bandwidth-{way}", ALL, float(rate)
