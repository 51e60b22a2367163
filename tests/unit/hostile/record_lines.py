"""Lines as a hostile instance could send them: records of every kind with values of every wrong kind."""

import json
from copy import deepcopy
from random import Random

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e"
VALUES = (
    None,
    True,
    0,
    -1,
    10**400,
    2**63,
    -(2**63) - 1,
    0.0,
    -0.0,
    1e308,
    -1e308,
    5e-324,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "nan",
    "1",
    "x" * 3000,
    ESCAPE,
    "\ud800",
    "\x00",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "{0.__class__}{cause}",
    "2026-09-01T12:00:00+00:00",
    "9999-12-31T23:59:59+00:00",
    "0001-01-01T00:00:00+14:00",
    "i-0002.0",
    [],
    [[]],
    [None, {}],
    {},
    {"name": None},
    {"value": "x"},
    {"throughput": {"value": float("nan"), "low": float("inf"), "high": None, "unit": ESCAPE}},
)
TIME = "2026-09-01T12:00:0{}+00:00"
_METRIC = {"value": 10.5, "low": 10.0, "high": 11.0, "unit": "images/s", "samples": 9}
RECORDS = (
    {
        "record": "start",
        "time": TIME.format(0),
        "benchmark": "quantization",
        "arguments": {"run": "train.py", "settings": {}},
        "settings": {"steps": 40},
        "hardware": {
            "cpu_model": "Xeon",
            "physical_cores": 2,
            "logical_cpus": 4,
            "cpu_flags": ["avx512"],
            "memory_gib": 8.0,
            "gpus": [{"name": "T4"}],
        },
        "facts": {"environment": "x"},
    },
    {
        "record": "result",
        "case": "vgg16",
        "setting": "fp32",
        "baseline": True,
        "stable": True,
        "metrics": {"throughput": _METRIC, "latency": _METRIC, "memory": _METRIC},
        "facts": {"dtype": "fp32", "threads": 2, "top1": 0.7},
        "warnings": ["noisy"],
    },
    {"record": "result", "case": "vgg16", "setting": "int8", "metrics": {"throughput": _METRIC}},
    {
        "record": "comparison",
        "case": "vgg16",
        "baseline": "fp32",
        "candidate": "int8",
        "metric": "throughput",
        "ratio": 1.9,
        "low": 1.8,
        "high": 2.0,
        "verdict": "faster",
    },
    {
        "record": "overall",
        "case": "vgg16",
        "baseline": "b",
        "candidate": "int8",
        "ratio": 2,
        "low": 1,
        "high": 3,
    },
    {"record": "progress", "message": "vgg16", "done": 1, "total": 4, "remaining_s": 100.0},
    {"record": "failure", "case": "vgg16", "setting": "int8", "message": "no memory"},
    {"record": "skip", "case": "vgg16", "reason": "no GPU"},
    {"record": "sample", "case": "vgg16", "setting": "int8", "value": 5.0},
    {"record": "case", "case": "vgg16", "complete": True, "time": TIME.format(5)},
    *(
        {
            "record": "step",
            "run": "r",
            "worker": "i-0001.0",
            "time": TIME.format(step),
            "step": step,
            "samples": 64,
            "loss": 2.5,
            "world_size": 2,
            "seconds": 0.5,
            "lineage": "a",
            "generation": 1,
        }
        for step in (1, 2, 3)
    ),
    *(
        {
            "record": "event",
            "run": "r",
            "worker": "i-0001.0",
            "event": event,
            "cause": "spot",
            "step": 3,
            "time": time,
        }
        for event, time in (
            ("joined", TIME.format(1)),
            ("notice", TIME.format(2)),
            ("waiting", TIME.format(3)),
        )
    ),
)


def hostile_record(random: Random) -> dict:
    """Return a record that has between none and four wrong values."""
    record = json.loads(json.dumps(random.choice(RECORDS)))
    for _ in range(random.choice((0, 1, 1, 1, 2, 4))):
        place = record
        while True:
            key = random.choice([*place] if isinstance(place, dict) else [*range(len(place))])
            inner = place[key]
            if isinstance(inner, dict | list) and inner and random.random() < 0.7:
                place = inner
                continue
            break
        chance = random.random()
        if chance < 0.15 and isinstance(place, dict) and key != "record":
            del place[key]
        elif chance < 0.3 and isinstance(place, dict):
            place[random.choice(("extra", ESCAPE, "", "metrics", "hardware"))] = deepcopy(
                random.choice(VALUES)
            )
        elif place is not record or key != "record" or random.random() < 0.1:
            place[key] = deepcopy(random.choice(VALUES))
        if not record:
            break
    return record


def hostile_line(random: Random) -> bytes:
    """Return a line, most often a record, sometimes cut off, joined with another, or no text at all."""
    text = json.dumps(hostile_record(random), ensure_ascii=random.random() < 0.5)
    line = text.encode("utf-8", "surrogatepass")
    chance = random.random()
    if chance < 0.03:
        line = line[: random.randrange(len(line) + 1)]
    elif chance < 0.06:
        place = random.randrange(len(line) + 1)
        line = line[:place] + random.randbytes(random.randrange(1, 9)) + line[place:]
    elif chance < 0.07:
        line = b'{"record": "result", "x": ' + b"[" * 20_000
    elif chance < 0.08:
        line = b'{"record": "progress", "done": ' + b"9" * 5000 + b"}"
    return line.replace(b"\n", b" ") + b"\n"
