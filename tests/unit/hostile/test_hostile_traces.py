"""Availability traces that no one recorded: read or refused with their line, and simulated without an error.

DLCLOUD_FUZZ sets the number of traces (default 150), DLCLOUD_FUZZ_SEED the seed, which a failure names.
"""

import json
import math
import os
from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from dlcloud.model.errors import RecipeError
from dlcloud.report.deadlines import simulation_report
from dlcloud.report.table import Format, render
from dlcloud.scheduling.policies import POLICIES
from dlcloud.scheduling.policies.situation import HOUR_S
from dlcloud.scheduling.simulation.bound import least_cost_usd
from dlcloud.scheduling.simulation.replay import SimulatedJob, replay_all
from dlcloud.scheduling.simulation.summary import bound_row, policy_row
from dlcloud.scheduling.simulation.traces import Window, read_trace

NUMBERS = (
    *("0", "-0", "1", "-1", "2", "60000", "600", "1e-300", "5e-324", "1e300", "1e308", "1e999", "9" * 400),
    *("9" * 5000, "NaN", "Infinity", "-Infinity", "nan", "inf", "1_0", "0x1", " 5 ", "٣", "1e5", "true"),
)
WORDS = ("", "null", "[]", "{}", '""', '"x"', "[[]]", '{"a": 1}', "add", "a,b", "\x00", "\ud800", "größe")
ENDINGS = ("json", "csv", "txt", "jsonl", "JSON", "yaml", "")
JSON_WINDOW = """{"metadata": {"gap_seconds": 600, "meaning": "obtainable"},
 "data": [1, 0, 1, 1, 0], "prices": [1, 1, 0.5, 1, 2.5]}"""
_TEXTS = {
    "json": (JSON_WINDOW, '{"metadata": {"gap_seconds": 300.0}, "data": [0, 3, 16]}'),
    "csv": ("0,add,a\n60000,add,b\n120000,remove,a\n", "0,1\n600000,0\n1200000,2\n"),
    "jsonl": (
        '[0, "add", {"nodes": ["a", "b"], "duration": 60000}]\n[60000, "remove", {"nodes": ["a"]}]\n',
        '[0, "add", {"nodes": ["a"]}]\n[70000, "no-op", {}]\n[80000, "migration", {"nodes": []}]\n',
    ),
}


def hostile_trace(random: Random) -> tuple[str, str]:
    """Return a file name and a text: a small trace with a few changes, sometimes of another format."""
    ending = random.choice(("json", "csv", "jsonl"))
    text = _drawn(random, ending) if random.random() < 0.3 else random.choice(_TEXTS[ending])
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        text = _change(random, text)
    if random.random() < 0.05:
        ending = random.choice(ENDINGS)
    return f"t.{ending}", text.encode("utf-8", "replace").decode()


def _drawn(random: Random, ending: str) -> str:
    """Return a trace of numbers that were drawn one by one."""
    size = random.choice((1, 2, 10, 300))
    number = (lambda: random.choice(NUMBERS)) if random.random() < 0.5 else (lambda: str(random.randrange(9)))
    times = sorted(random.choice((0, 1, 1e3, 1e7, 1e12)) * random.random() for _ in range(size))
    if ending == "json":
        values = ", ".join(number() for _ in range(size))
        prices = f', "prices": [{values}]' if random.random() < 0.5 else ""
        counts = ", ".join(number() for _ in range(size))
        gap = random.choice(NUMBERS)
        return f'{{"metadata": {{"gap_seconds": {gap}}}, "data": [{counts}]{prices}}}'
    if ending == "csv":
        return "\n".join(f"{time},{number()}" for time in times)
    events = ("add", "remove", "no-op", "migration", "x")
    return "\n".join(
        json.dumps([time, random.choice(events), {"nodes": random.sample("abcdef", 2), "duration": time}])
        for time in times
    )


def _change(random: Random, text: str) -> str:
    place = random.randrange(len(text) + 1)
    word = random.choice((*NUMBERS, *WORDS, *',:[]{}"\n-.e '))
    match random.randrange(5):
        case 0:
            return text[:place] + word + text[place:]
        case 1:
            return text[:place] + text[place + random.randrange(1, 4) :]
        case 2:
            lines = text.split("\n")
            lines.insert(random.randrange(len(lines) + 1), random.choice(lines))
            return "\n".join(lines)
        case 3:
            return _with_other_number(random, text)
        case _:
            return (
                text[:place] if random.random() < 0.2 else text.replace(random.choice("0123456789"), word, 1)
            )


def _with_other_number(random: Random, text: str) -> str:
    """Replace one run of digits."""
    starts = [i for i, c in enumerate(text) if c.isdigit() and not text[i - 1 : i].isdigit()]
    if not starts:
        return text
    start = random.choice(starts)
    end = next((i for i in range(start, len(text)) if not text[i].isdigit()), len(text))
    return text[:start] + random.choice(NUMBERS) + text[end:]


JOBS = (
    SimulatedJob(work_s=6 * HOUR_S, allowed_s=9 * HOUR_S, on_demand_usd=3.0, spot_usd=1.0, changeover_s=60.0),
    SimulatedJob(
        work_s=2 * HOUR_S,
        allowed_s=HOUR_S,
        on_demand_usd=3.0,
        spot_usd=1.0,
        minimum=2,
        maximum=4,
        boot_s=120.0,
        traffic_usd=0.1,
        refuse_first_s=600.0,
    ),
)


def live_through(text, file):
    """Read a trace and simulate on it; its faults are RecipeErrors."""
    trace = read_trace(text, file, pool="a")
    assert trace.starts_s[0] == 0.0
    assert all(before < after for before, after in pairwise(trace.starts_s))
    assert trace.starts_s[-1] <= trace.end_s > 0.0
    assert math.isfinite(trace.end_s)
    assert len(trace.counts) == len(trace.starts_s) == len(trace.prices or trace.counts)
    assert all(count >= 0 for count in trace.counts)
    assert 0.0 <= trace.availability <= 1.0 + 1e-9
    assert trace.losses < len(trace.counts)
    windows = [Window(name="w", pools=(trace, trace.scaled(3)))]
    results = []
    for job in JOBS:
        bounds = [least_cost_usd(job, window) for window in windows]
        rows = [
            policy_row(name, job, replay_all(job, windows, policy), bounds)
            for name, policy in POLICIES.items()
        ]
        results.append((job, [*rows, bound_row(job, bounds)]))
    report = simulation_report(results)
    for form in Format:
        text = render(report, form)
        if form is Format.JSON:
            json.loads(text, parse_constant=_refuse)


def _refuse(name):
    raise AssertionError(f"{name} is no JSON")


TRACES = int(os.environ.get("DLCLOUD_FUZZ", "150"))
SEED = int(os.environ.get("DLCLOUD_FUZZ_SEED") or Random().randrange(10_000))


@pytest.mark.timeout(7200)
def test_any_trace_is_simulated_or_refused_with_its_line(record_property):
    counts, messages = Counter(), []
    for number in range(TRACES):
        file, text = hostile_trace(Random(SEED * 1_000_003 + number))
        try:
            live_through(text, file)
            counts["read"] += 1
        except RecipeError as error:
            messages.append(error.message)
        except Exception as error:
            raise AssertionError(f"DLCLOUD_FUZZ_SEED={SEED}, trace {number}: {error!r}\n{text}") from error
    wrong = [message[:300] for message in messages if not message.startswith("t.") or len(message) > 300]
    assert not wrong, f"DLCLOUD_FUZZ_SEED={SEED}"
    record_property("traces", {**counts, "refused": len(messages)})


def test_a_separator_before_a_count_is_blank_space():
    """Found by tests/fuzz: int() takes less for blank than strip() does."""
    live_through("0,\x1f5", "t.csv")


def test_free_spot_instances_leave_the_ratio_to_the_bound_open():
    live_through(JSON_WINDOW.replace('"prices": [1, 1, 0.5, 1, 2.5]', '"prices": [0, 0, 0, 0, 0]'), "t.json")
    live_through('{"metadata": {"gap_seconds": 1e6}, "data": [9], "prices": [0]}', "t.json")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("t.json", JSON_WINDOW.replace("600", "9" * 400)),
        ("t.json", JSON_WINDOW.replace("600", "9" * 5000)),
        ("t.json", JSON_WINDOW.replace("600", "1e308")),
        ("t.json", JSON_WINDOW.replace("600", "5e-324")),
        ("t.json", JSON_WINDOW.replace("2.5", "1e300")),
        ("t.json", JSON_WINDOW.replace("[1, 0,", f"[{'9' * 4000}, 0,")),
        ("t.csv", f"0,{'9' * 5000}"),
        ("t.csv", "1e300,1"),
        ("t.jsonl", f'[0, "add", {{"nodes": ["a"], "duration": {"9" * 400}}}]'),
        ("t.jsonl", f'[{"9" * 5000}, "add", {{"nodes": ["a"]}}]'),
        ("t.jsonl", '[0, "add", {"nodes": ["a"], "duration": 0}]'),
        ("t.jsonl", '[0, "' + "x" * 5000 + '", {}]'),
    ],
)
def test_a_number_beyond_any_trace_is_refused(file, text):
    with pytest.raises(RecipeError) as caught:
        live_through(text, file)
    assert caught.value.message.startswith(f"{file}:1: ")
    assert len(caught.value.message) < 200
