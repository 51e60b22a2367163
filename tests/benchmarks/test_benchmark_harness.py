"""How variants are measured, compared and recorded, on variants of known speed."""

import dataclasses
import io
import itertools
import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from dlcloud.benchmarks.harness import program, roofline, usage
from dlcloud.benchmarks.harness.case import Case, Limits
from dlcloud.benchmarks.harness.program import render
from dlcloud.benchmarks.harness.protocol import measure
from dlcloud.benchmarks.harness.records import Recorder, open_records
from dlcloud.benchmarks.harness.roofline import Peak, Peaks, Work, share_of_peak
from dlcloud.benchmarks.harness.schema import Comparison, Measurement, MetricName, Result
from dlcloud.benchmarks.harness.usage import (
    CpuTimes,
    disturbance,
    energy_facts,
    joules_between,
    read_cpu_times,
    read_energy,
)
from tests.fakes.variants import FakeVariant, Machine, session_of


@dataclass
class Bench:
    machine: Machine
    limits: Limits
    is_finishing: object = staticmethod(lambda: False)
    output: io.StringIO = field(default_factory=io.StringIO)
    messages: io.StringIO = field(default_factory=io.StringIO)

    def run(self, *variants, compare=lambda _ours, _theirs: {}, **case):
        recorder = Recorder(output=self.output, messages=self.messages)
        session = session_of(self.machine, recorder, self.limits, is_finishing=self.is_finishing)
        measure([Case(name="case", variants=variants, compare=compare, **case)], session)
        return recorder

    def records(self, kind):
        records = [json.loads(line) for line in self.output.getvalue().splitlines()]
        return [record for record in records if record["record"] == kind]


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def bench(machine):
    return Bench(machine, Limits())


def named(*names, machine, **other):
    return [FakeVariant(name, 10.0 * (place + 1), machine, **other) for place, name in enumerate(names)]


def compared(comparisons):
    return [(one.baseline, one.candidate, one.ratio) for one in comparisons]


def test_a_clear_case_stops_at_the_first_look(bench, machine):
    variants = [
        FakeVariant("fp32", 10.0, machine, noise=0.01),
        FakeVariant("int8", 30.0, machine, noise=0.01),
    ]
    recorder = bench.run(*variants, compare=lambda ours, theirs: {"agreement": ours[0][0] / theirs[0][0]})
    (comparison,) = recorder.comparisons
    assert comparison.ratio == pytest.approx(3.0, rel=0.05)
    assert comparison.verdict == "faster"
    assert comparison.samples == 8
    baseline, candidate = recorder.results
    assert (baseline.baseline, candidate.baseline) == (True, False)
    assert candidate.facts == {"model_bytes": 100, "agreement": pytest.approx(1 / 3)}
    assert baseline.facts == {"model_bytes": 100}
    assert set(baseline.metrics) == {
        MetricName.THROUGHPUT,
        MetricName.LATENCY_P50,
        MetricName.LATENCY_P99,
    }
    assert baseline.stable
    assert all(variant.closed for variant in variants)


@pytest.mark.parametrize("names", ["ab", "abc", "abcd"])
def test_every_setting_runs_as_often_before_another_as_after_it(bench, machine, names):
    log = []
    bench.run(*(FakeVariant(name, 10.0, machine, log=log) for name in names))
    rounds = [log[start : start + len(names)] for start in range(0, len(log), len(names))]
    assert len(rounds) % 2 == 0
    assert all(sorted(order) == list(names) for order in rounds)
    assert {order[0] for order in rounds} == set(names)
    for one, other in itertools.combinations(names, 2):
        before = sum(order.index(one) < order.index(other) for order in rounds)
        assert before == len(rounds) / 2


def test_noise_is_measured_longer_and_then_called_unstable(bench, machine):
    noisy = {"noise": 0.3}
    generator = random.Random(9)
    variants = [FakeVariant(name, 10.0, machine, generator=generator, **noisy) for name in ("a", "b")]
    recorder = bench.run(*variants)
    assert recorder.comparisons[0].samples == 30  # 60 s of two slices of 1 s each
    assert recorder.comparisons[0].verdict == "no difference seen"
    assert not recorder.results[0].stable
    assert "time was up with the narrowest interval of a speed-up over it" in recorder.results[0].warnings[0]


def test_the_time_goes_to_those_whose_speed_up_is_not_known_yet(bench, machine):
    log = []
    noise = {"a": 0.0, "clear": 0.0, "noisy": 0.2}
    variants = [FakeVariant(name, 10.0, machine, log=log, noise=share) for name, share in noise.items()]
    recorder = bench.run(*variants)
    clear, noisy = recorder.comparisons
    assert (clear.samples, noisy.samples) == (8, 26)  # 60 s: 8 rounds of three slices, 18 of two
    assert log.count("a") == 26
    assert "clear" not in log[24:]
    before = sum(log[place : place + 2] == ["a", "noisy"] for place in range(24, 60, 2))
    assert before == 9
    _, of_clear, of_noisy = recorder.results
    assert (of_clear.warnings, of_clear.stable) == ((), True)
    assert of_noisy.warnings[0].startswith("time was up with the interval of its speed-up ")
    shown = {line.split()[1]: line for line in render(recorder).splitlines() if line.startswith("case ")}
    assert ", time was up" in shown["noisy"]
    assert ", time was up" not in shown["clear"]
    messages = [record["message"] for record in bench.records("progress")]
    assert any(message.endswith("still measured: noisy") for message in messages)


def test_the_interval_that_ended_the_rounds_is_the_one_reported(machine):
    ended_early = 0
    for number in range(40):
        bench, generator = Bench(machine, Limits()), random.Random(number)
        variants = [FakeVariant(name, 10.0, machine, noise=0.02, generator=generator) for name in ("a", "b")]
        recorder = bench.run(*variants)
        if recorder.comparisons[0].samples < 30:  # 60 s of two slices of 1 s each
            ended_early += 1
            assert [result.warnings for result in recorder.results] == [(), ()]
    assert ended_early > 30


GIB = 1 << 30
ROOM = {"expected_bytes": GIB, "peak": GIB}


def test_settings_without_memory_wait_and_their_baseline_stays(bench, machine):
    machine.memory = round(2.5 * GIB)
    log = []
    recorder = bench.run(*named("fp32", "bf16", "int8", machine=machine, log=log, **ROOM))
    assert set(log[:16]) == {"fp32", "bf16"}
    assert set(log[16:]) == {"fp32", "int8"}
    assert compared(recorder.comparisons) == [("fp32", "bf16", 2.0), ("fp32", "int8", 3.0)]
    assert [comparison.samples for comparison in recorder.comparisons] == [8, 8]
    assert [result.setting for result in recorder.results] == ["fp32", "bf16", "int8"]
    messages = [record["message"] for record in bench.records("progress")]
    (message,) = [message for message in messages if "after the others" in message]
    assert message.endswith("int8 (int8: it wants about 1.0 GiB of memory, and 0.5 GiB are free)")
    assert bench.records("case")[0]["complete"]
    assert machine.taken == 0


def test_a_setting_without_memory_beside_its_baseline_is_skipped(bench, machine):
    machine.memory = round(1.5 * GIB)
    recorder = bench.run(*named("fp32", "int8", machine=machine, **ROOM))
    (skip,) = recorder.skips
    assert skip.setting == "int8"
    assert skip.reason == "it wants about 1.0 GiB of memory, and 0.5 GiB are free next to fp32"
    assert [result.setting for result in recorder.results] == ["fp32"]
    assert not bench.records("case")[0]["complete"]


def test_an_engine_whose_baseline_waits_waits_with_it(bench, machine):
    machine.memory = round(2.5 * GIB)
    log = []
    variants = of_two_engines(
        machine, **dict.fromkeys(("a fp32", "a int8", "b fp32", "b int8"), ROOM | {"log": log})
    )
    recorder = bench.run(*variants, **ENGINES)
    assert set(log[:16]) == {"a fp32", "a int8"}
    assert set(log[16:]) == {"b fp32", "b int8"}
    assert compared(recorder.comparisons) == [("a fp32", "a int8", 4.0), ("b fp32", "b int8", 3.0)]
    # What never ran side by side is not compared.
    assert compared(recorder.overall) == [("b fp32", "b int8", 3.0)]


def test_memory_of_a_running_setting_corrects_the_estimate_of_the_next(machine):
    small, large = FakeVariant("a", 1.0, machine, **ROOM), FakeVariant("b", 1.0, machine, peak=3 * GIB)
    unknown = FakeVariant("c", 1.0, machine)
    assert usage.estimate_bytes(small, []) == GIB
    assert usage.estimate_bytes(small, [dataclasses.replace(small, peak=2 * GIB)]) == 2 * GIB
    assert usage.estimate_bytes(unknown, [small, large]) == 3 * GIB
    assert usage.estimate_bytes(unknown, []) == 0
    assert usage.explain_shortage(small, [], None) is None


def test_free_memory_is_that_of_the_machine_or_of_the_control_group(tmp_path):
    assert usage.free_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 4096 kB\nMemAvailable:    2048 kB\n")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("900000\n")
    assert usage.free_bytes(tmp_path) == 2048 * 1024
    (group / "memory.max").write_text("1000000\n")
    (group / "memory.stat").write_text("anon 3\ninactive_file 50000\n")
    assert usage.free_bytes(tmp_path) == 150_000


def test_a_disturbed_slice_is_run_again(bench, machine):
    machine.others = {2: 0.5}
    recorder = bench.run(*named("a", "b", machine=machine))
    samples = bench.records("sample")
    assert [sample["redone"] for sample in samples] == [0, 0, 1] + [0] * 13
    assert all(sample["disturbed_share"] == 0 for sample in samples)
    assert recorder.results[0].warnings == ()


def test_a_machine_that_is_always_disturbed_is_measured_and_marked(bench, machine):
    machine.others = dict.fromkeys(range(1000), 0.2)
    recorder = bench.run(*named("a", "b", machine=machine))
    assert sum(sample["redone"] for sample in bench.records("sample")) == 10
    assert machine.slices == 26
    assert bench.records("sample")[0]["disturbed_share"] == pytest.approx(0.2)
    assert recorder.results[0].warnings == ("other work disturbed 8 of 8 slices",)
    assert not recorder.results[0].stable


@dataclass
class Crowded(FakeVariant):
    """A variant that shares its CPUs with strangers, slice after slice, and gets what they leave."""

    strangers: float = 0.5

    def measure(self, seconds):
        self.machine.others[self.machine.slices] = self.strangers
        measured = super().measure(seconds)
        return dataclasses.replace(measured, value=measured.value * (1 - self.strangers))


def test_a_difference_that_others_explain_names_no_winner(machine):
    bench = Bench(machine, Limits(rounds=8, slice_s=31.0, fixed=True))
    variants = [Crowded("a", 10.0, machine), Crowded("b", 10.0, machine, strangers=0.75)]
    comparison = bench.run(*variants).comparisons[0]
    assert comparison.ratio == pytest.approx(0.5)
    assert comparison.high == pytest.approx(1.0)
    assert comparison.verdict == "no difference seen"


def test_a_long_slice_is_not_run_again(machine):
    machine.others = dict.fromkeys(range(1000), 0.5)
    bench = Bench(machine, Limits(rounds=2, slice_s=40.0, fixed=True))
    bench.run(FakeVariant("a", 10.0, machine))
    assert machine.slices == 2


@pytest.mark.parametrize("call", ["start", "warm_up", "measure", "finish"])
def test_what_fails_is_recorded_and_the_others_go_on(bench, machine, call):
    bad = FakeVariant("bad", 10.0, machine, fails=call, fails_at=3)
    recorder = bench.run(FakeVariant("a", 10.0, machine), bad, FakeVariant("b", 20.0, machine))
    assert [(failure.setting, failure.message) for failure in recorder.failures] == [
        ("bad", f"no {call} today")
    ]
    assert [result.setting for result in recorder.results] == ["a", "b"]
    assert recorder.comparisons[0].ratio == pytest.approx(2.0)
    assert bad.closed


def test_without_its_baseline_nothing_is_compared(bench, machine):
    bad = FakeVariant("fp32", 10.0, machine, fails="start")
    recorder = bench.run(bad, FakeVariant("int8", 20.0, machine), FakeVariant("bf16", 15.0, machine))
    assert [result.setting for result in recorder.results] == ["int8", "bf16"]
    assert not any(result.baseline for result in recorder.results)
    assert recorder.comparisons == []


ENGINES = {"baselines": {"b int8": "b fp32", "b fp32": "b fp32"}, "contenders": {"a fp32", "b fp32"}}


def of_two_engines(machine, **changes):
    speeds = {"a fp32": 10.0, "a int8": 40.0, "b fp32": 16.0, "b int8": 48.0}
    return [FakeVariant(name, speed, machine, **changes.get(name, {})) for name, speed in speeds.items()]


def test_settings_are_compared_with_their_own_and_the_best_baseline(bench, machine):
    recorder = bench.run(*of_two_engines(machine), compare=lambda a, b: {"of": a[0][0] / b[0][0]}, **ENGINES)
    assert compared(recorder.comparisons) == [("a fp32", "a int8", 4.0), ("b fp32", "b int8", 3.0)]
    overall = [("b fp32", "a fp32", 0.625), ("b fp32", "a int8", 2.5), ("b fp32", "b int8", 3.0)]
    assert compared(recorder.overall) == overall
    assert [record["verdict"] for record in bench.records("overall")] == ["slower", "faster", "faster"]
    assert [result.baseline for result in recorder.results] == [True, False, True, False]
    facts = {result.setting: result.facts for result in recorder.results}
    assert facts["b int8"] == {"model_bytes": 100, "of": 16 / 48}
    assert facts["b fp32"] == {"model_bytes": 100, "of": 10 / 16, "compared_with": "a fp32"}


def test_a_setting_whose_baseline_failed_is_compared_with_the_best(bench, machine):
    recorder = bench.run(*of_two_engines(machine, **{"b fp32": {"fails": "start"}}), **ENGINES)
    assert compared(recorder.comparisons) == [("a fp32", "a int8", 4.0)]
    assert compared(recorder.overall) == [("a fp32", "a int8", 4.0), ("a fp32", "b int8", 4.8)]


def test_where_everything_fails_there_is_no_result(bench, machine):
    recorder = bench.run(*named("a", "b", machine=machine, fails="start"))
    assert (len(recorder.failures), recorder.results) == (2, [])


def test_one_setting_alone_is_measured_to_its_own_width(bench, machine):
    recorder = bench.run(FakeVariant("a", 10.0, machine, noise=0.01))
    assert recorder.results[0].metrics[MetricName.THROUGHPUT].samples == 8
    assert recorder.comparisons == []


def test_what_two_processes_of_one_setting_may_differ_by_names_no_winner(bench, machine):
    variants = [FakeVariant("a", 100.0, machine, process_spread=0.02), FakeVariant("b", 101.5, machine)]
    comparison = bench.run(*variants).comparisons[0]
    assert comparison.low == pytest.approx(1.015 / 1.02, rel=1e-4)
    assert comparison.verdict == "no difference seen"


def test_less_is_better_for_durations(bench, machine):
    variants = [
        FakeVariant(name, value, machine, metric=MetricName.DURATION)
        for name, value in (("a", 2.0), ("b", 1.0))
    ]
    comparison = bench.run(*variants).comparisons[0]
    assert (comparison.ratio, comparison.verdict) == (2.0, "faster")


def test_a_warm_up_without_end_is_reported(bench, machine):
    recorder = bench.run(FakeVariant("a", 10.0, machine, settled=False))
    assert "warm-up" in recorder.results[0].warnings[0]


def test_fewer_rounds_than_can_decide(machine):
    recorder = Bench(machine, Limits(rounds=2, fixed=True)).run(*named("a", "b", machine=machine))
    assert recorder.comparisons[0].verdict == "undecided"
    assert recorder.comparisons[0].confidence == 0.5


def test_a_session_that_finishes_ends_its_round_and_records_what_it_has(machine):
    bench = Bench(machine, Limits(rounds=1000), is_finishing=lambda: machine.slices > 4)
    machine.memory = round(2.5 * GIB)
    recorder = bench.run(*named("fp32", "bf16", "int8", machine=machine, log=[], **ROOM))
    assert [result.metrics[MetricName.THROUGHPUT].samples for result in recorder.results] == [3, 3]
    assert [skip.setting for skip in recorder.skips] == ["int8"]
    assert not bench.records("case")[0]["complete"]


def test_disturbance_leaves_out_what_the_benchmark_used_itself():
    before = CpuTimes(busy=10.0, stolen=1.0, total=100.0)
    after = CpuTimes(busy=12.5, stolen=1.2, total=104.0)
    taken = disturbance(before, after, own=2.0)
    assert taken.others == pytest.approx(0.125)
    assert taken.stolen == pytest.approx(0.05)
    assert disturbance(before, before, own=0.0).share == 0


def test_proc_stat_is_read_and_may_be_missing(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 10 20 1000 5 1 2 7 50 0\ncpu0 1 2 3\n")
    reading = read_cpu_times(stat)
    assert reading.busy / reading.stolen == pytest.approx(133 / 7)
    assert reading.total / reading.stolen == pytest.approx(1145 / 7)
    nothing = read_cpu_times(tmp_path / "none")
    assert disturbance(nothing, nothing, own=1.0).share == 0


def test_the_energy_of_all_packages_is_shared_by_items(tmp_path):
    def write_counters(*used):
        for name, value in zip(("0", "1", "0:0"), used, strict=True):
            folder = tmp_path / f"intel-rapl:{name}"
            folder.mkdir(exist_ok=True)
            (folder / "energy_uj").write_text(f"{value}\n")
            (folder / "max_energy_range_uj").write_text("1000\n")

    nothing = read_energy(tmp_path / "missing")
    (tmp_path / "intel-rapl:2").mkdir()  # only root may read the counter
    assert read_energy(tmp_path) == nothing
    assert joules_between(nothing, nothing) is None
    write_counters(100, 900, 5)
    before = read_energy(tmp_path)
    # The second began again at 0; the third is a part of the first.
    write_counters(300, 50, 105)
    assert joules_between(before, read_energy(tmp_path)) == pytest.approx(350e-6)
    assert energy_facts([2.0, 4.0], 12) == {"package_joules_per_item": 0.5}
    assert energy_facts([2.0, None], 12) == energy_facts([None, None], 10) == energy_facts([], 0) == {}


PEAK = Peak(dtype="fp32", flop_per_s=100e9, bytes_per_s=10e9)


@pytest.mark.parametrize(
    ("work", "bound", "share"),
    [
        (Work(flop=4e9, bytes=1e8), "compute", 40),
        (Work(flop=1e9, bytes=5e8), "memory", 50),
        (Work(flop=1e9, bytes=5e9), "compute", 10),  # more than memory brings: caches held it
        (Work(flop=1e9), "compute", 10),
    ],
)
def test_a_roofline_says_what_bounds_a_setting(work, bound, share):
    facts = share_of_peak(work, 10, PEAK)
    assert (facts["bound"], facts["share_of_peak_percent"]) == (bound, share)
    assert "peak_raised_percent" not in facts


def test_no_share_is_above_100_percent():
    facts = share_of_peak(Work(flop=11e9), 10, PEAK)
    assert facts["share_of_peak_percent"] == 100
    assert facts["peak_raised_percent"] == 10
    assert facts["peak_gflops"] == facts["reached_gflops"] == 110


def test_a_peak_is_measured_once_for_a_name_and_an_environment():
    peaks, slower = Peaks(), Peak(dtype="fp32", flop_per_s=50e9, bytes_per_s=20e9)
    for environment, peak in (("a", PEAK), ("a", None), ("b", slower), ("c", None)):
        peaks.keep("fp32", environment, lambda peak=peak: peak)
    assert peaks.best("fp32") == Peak(dtype="fp32", flop_per_s=100e9, bytes_per_s=20e9)
    assert peaks.best("int8") is None


def test_work_is_read_from_facts_as_it_was_written():
    work = Work(flop=8e9, bytes=1e8, uncounted=("Relu",))
    assert work.facts() == {
        "flop_per_input": 8e9,
        "bytes_per_input": 1e8,
        "uncounted_operators": ["Relu"],
    }
    assert Work.of_facts(work.facts()) == work
    assert work.computed_in("int8") == Work(flop=8e9, bytes=25e6, uncounted=("Relu",))
    assert Work.of_facts({}) is None


def test_the_best_rate_is_that_of_the_fastest_run():
    times = iter([0.5, 0.1, 0.02, 0.1, *[0.05] * 100])
    clock = [0.0]

    def run():
        clock[0] += next(times)

    assert roofline.best_rate(run, 1.0, 0.3, clock=lambda: clock[0]) == pytest.approx(50)


def test_larger_products_are_left_out_where_they_take_long():
    sizes, clock = [], [0.0]

    def make(size):
        sizes.append(size)

        def run():
            clock[0] += 2 * size**3 / 1e9

        return run

    assert roofline.best_product(make, 1.0, clock=lambda: clock[0]) == pytest.approx(1e9)
    assert set(sizes) == {512}


NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def recorder(output=None):
    return Recorder(output=output, messages=io.StringIO(), now=lambda: NOON)


def result(setting="fp32", **changes):
    throughput = Measurement(value=10.0, low=9.0, high=11.0, unit="images/s", samples=7)
    fields = {
        "case": "vgg16 batch 1",
        "setting": setting,
        "baseline": setting == "fp32",
        "metrics": {MetricName.THROUGHPUT: throughput},
        "facts": {"model_bytes": 1 << 20, "weights": "random"},
        "warnings": (),
        "stable": True,
    }
    return Result(**{**fields, **changes})


def comparison():
    return Comparison(
        case="vgg16 batch 1",
        baseline="fp32",
        candidate="int8",
        metric=MetricName.THROUGHPUT,
        ratio=3.6,
        low=3.5,
        high=3.7,
        confidence=0.95,
        verdict="faster",
        samples=7,
    )


def test_every_record_is_a_line_of_json_with_its_kind_and_time():
    output = io.StringIO()
    writer = recorder(output)
    writer.start("quantization", {"batch": [1]}, 0, {"hardware": {}, "software": {}})
    writer.progress("warming up", done=0, total=2, remaining_s=60.0)
    writer.sample({"case": "vgg16 batch 1", "value": 10.0})
    writer.result(result())
    writer.comparison(comparison())
    writer.case_end("vgg16 batch 1", ["fp32"], seconds=5, complete=True)
    writer.failure("vgg16 batch 1", "int8", "no")
    writer.end(ok=False, seconds=1.23456)
    records = [json.loads(line) for line in output.getvalue().splitlines()]
    kinds = ["start", "progress", "sample", "result", "comparison", "case", "failure", "end"]
    assert [record["record"] for record in records] == kinds
    assert {(record["schema"], record["time"]) for record in records} == {
        (1, "2026-11-20T12:00:00.000+00:00")
    }
    assert records[3]["metrics"] == {
        "throughput": {"value": 10.0, "low": 9.0, "high": 11.0, "unit": "images/s", "samples": 7}
    }
    assert records[4]["metric"] == "throughput"
    assert records[7] == {**records[7], "ok": False, "seconds": 1.235}


def test_records_are_appended_after_a_line_that_a_crash_cut_off(tmp_path):
    path = tmp_path / "new folder" / "records.jsonl"
    with open_records(path) as file:
        recorder(file).end(ok=True, seconds=1.0)
    with path.open("a") as cut:
        cut.write('{"schema":1,"rec')
    with open_records(path) as file:
        recorder(file).end(ok=True, seconds=2.0)
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[2])["seconds"] == 2.0
    with open_records(None) as file:  # nothing is written
        recorder(file).end(ok=True, seconds=1.0)


def test_the_table_shows_results_comparisons_warnings_and_failures():
    writer = recorder()
    writer.result(result())
    writer.result(result("int8", warnings=("other work",), facts={"model_bytes": 1 << 18}))
    writer.comparison(comparison())
    writer.failure("resnet50", None, "no room")
    lines = program.render(writer).splitlines()
    assert lines[0].split("  ")[0] == "case"
    assert "throughput (images/s)" in lines[0]
    assert "10 [9, 11]" in lines[2]
    assert lines[2].rstrip().endswith("baseline")
    assert "3.6 [3.5, 3.7] faster" in lines[3]
    assert lines[4] == "warning: vgg16 batch 1, int8: other work"
    assert "random" in lines[5]
    assert lines[6] == "failed: resnet50, every setting: no room"


def test_the_table_shows_how_settings_compare_with_the_best_baseline():
    writer = recorder()
    writer.result(result())
    writer.result(result("int8"))
    writer.overall_comparison(comparison())
    fp32, int8 = program.render(writer).splitlines()[2:4]
    assert fp32.endswith("the best")
    assert int8.endswith("3.6 [3.5, 3.7] faster")
    assert program.render(recorder()) == ""
