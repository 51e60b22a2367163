"""Lines as a hostile instance could send them: records of every kind with values of every wrong kind."""

import json
from copy import deepcopy
from random import Random

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e"
VALUES = (
    *(None, True, 0, -1, 10**400, 2**63, -(2**63) - 1),
    *(0.0, -0.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
    *("", "nan", "1", "x" * 3000, ESCAPE, "\ud800", "\x00", "../../etc/passwd", "i-0002.0"),
    *("<script>alert(1)</script>", "=cmd|' /C calc'!A0", "{0.__class__}{cause}"),
    *("2026-09-01T12:00:00+00:00", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+14:00"),
    *([], [[]], [None, {}], {}, {"name": None}, {"value": "x"}),
    {"throughput": {"value": float("nan"), "low": float("inf"), "high": None, "unit": ESCAPE}},
)
_METRIC = {"value": 10.5, "low": 10.0, "high": 11.0, "unit": "images/s", "samples": 9}
_HARDWARE = {"cpu_model": "Xeon", "physical_cores": 2, "logical_cpus": 4, "cpu_flags": ["avx512"]}
_OF_WORKER = {"run": "r", "worker": "i-0001.0"}
_STEP = {"samples": 64, "loss": 2.5, "world_size": 2, "seconds": 0.5, "lineage": "a", "generation": 1}


def _record(kind, second=None, **values):
    """Return a record of a kind, with a time if it has one."""
    time = {} if second is None else {"time": f"2026-09-01T12:00:0{second}+00:00"}
    return {"record": kind, **time, **values}


RECORDS = (
    _record(
        "start",
        second=0,
        benchmark="quantization",
        arguments={"run": "train.py", "settings": {}},
        settings={"steps": 40},
        hardware={**_HARDWARE, "memory_gib": 8.0, "gpus": [{"name": "T4"}]},
        facts={"environment": "x"},
    ),
    _record(
        "result",
        case="vgg16",
        setting="fp32",
        baseline=True,
        stable=True,
        metrics={"throughput": _METRIC, "latency": _METRIC, "memory": _METRIC},
        facts={"dtype": "fp32", "threads": 2, "top1": 0.7},
        warnings=["noisy"],
    ),
    _record("result", case="vgg16", setting="int8", metrics={"throughput": _METRIC}),
    _record(
        "comparison",
        case="vgg16",
        baseline="fp32",
        candidate="int8",
        metric="throughput",
        ratio=1.9,
        low=1.8,
        high=2.0,
        verdict="faster",
    ),
    _record("overall", case="vgg16", baseline="b", candidate="int8", ratio=2, low=1, high=3),
    _record("progress", message="vgg16", done=1, total=4, remaining_s=100.0),
    _record("failure", case="vgg16", setting="int8", message="no memory"),
    _record("skip", case="vgg16", reason="no GPU"),
    _record("sample", case="vgg16", setting="int8", value=5.0),
    _record("case", second=5, case="vgg16", complete=True),
    *(_record("step", second=step, step=step, **_OF_WORKER, **_STEP) for step in (1, 2, 3)),
    *(
        _record("event", second=second, event=event, cause="spot", step=3, **_OF_WORKER)
        for second, event in ((1, "joined"), (2, "notice"), (3, "waiting"))
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
