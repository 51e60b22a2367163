"""A user's command as a benchmark: what it runs, what is read from its output, whose load counts."""

import json
import os
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

import dlcloud.benchmarks.command.output as output_module
from dlcloud.benchmarks.command import reporting
from dlcloud.benchmarks.command import variant as variants
from dlcloud.benchmarks.command.output import LONGEST_LINE, JsonField, OutputLines, Pattern, after_warm_up
from dlcloud.benchmarks.command.settings import read_settings
from dlcloud.benchmarks.command.share import cores_of, take_share, variables
from dlcloud.benchmarks.command.shell import shell_words, takes_arguments, with_arguments
from dlcloud.benchmarks.command.variant import CommandVariant, Setting
from dlcloud.benchmarks.harness import masking, usage
from dlcloud.benchmarks.harness.case import VariantError
from dlcloud.benchmarks.harness.numbers import repeats_in_repeats
from dlcloud.benchmarks.harness.records import is_secret_name
from tests.benchmarks.conftest import is_gone, read_records, run_python
from tests.fakes.training import wait_until

JOB = """
import json, os, sys
speed = float(os.environ.get("SPEED", "100"))
for step in range(8):
    rate = speed * (0.5 if step < 2 else 1) * (1 + 0.001 * step)
    print(f"step {step}: {rate:,.2f} images/sec")
    print(json.dumps({"train": {"rate": rate}}), file=sys.stderr, flush=True)
if "--fail" in sys.argv:
    sys.exit("out of luck")
"""


@pytest.fixture
def job(alone):
    (alone / "job.py").write_text(JOB)
    return alone


def run(folder, *arguments, **settings):
    words = ["-m", "benchmarks.command", "--output", "records.jsonl", *arguments]
    if settings:
        entries = [{"name": name, **changes} for name, changes in settings.items()]
        words += ["--settings", json.dumps(entries)]
    return run_python(sys.executable, folder, *words)


def records(folder, kind):
    return read_records(folder / "records.jsonl", kind)


def test_settings_are_compared_by_what_the_command_prints(job):
    done = run(
        job,
        "--run", f"{sys.executable} job.py",
        "--throughput", r"([\d.,]+) images/sec",
        "--unit", "images",
        "--case", "my job",
        plain={}, fast={"environment": {"SPEED": "1500"}},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "faster" in done.stdout
    assert "step 7: 1,510.50 images/sec" in done.stderr
    (comparison,) = records(job, "comparison")
    assert comparison["ratio"] == pytest.approx(15.0, rel=0.01)
    plain, fast = records(job, "result")
    assert plain["case"] == "my job"
    assert plain["metrics"]["throughput"]["unit"] == "images/s"
    assert plain["metrics"]["throughput"]["value"] == pytest.approx(100.5, rel=0.01)
    assert fast["facts"]["environment"] == {"SPEED": "1500"}
    rounds = [sample["round"] for sample in records(job, "sample") if sample["setting"] == "plain"]
    assert rounds == sorted(rounds)
    assert set(rounds) == set(range(6))
    assert len(rounds) > 8  # every value after the warm-up is a sample


def test_facts_are_the_last_that_a_run_printed(job):
    line = "echo accuracy: 0.1; echo accuracy: 0.9; echo 'state: good with s3cret-token'"
    facts = {"accuracy": r"accuracy: ([\d.]+)", "state": "state: (.*)", "loss": "loss: (.*)"}
    done = run(job, "--run", line, "--facts", json.dumps(facts), "--repeats", "1")
    (result,) = records(job, "result")
    assert result["facts"]["printed"]["accuracy"] == "0.9"
    assert result["facts"]["printed"]["loss"] == "not printed"
    assert "0.9" in done.stdout


def test_facts_that_differ_between_runs_are_all_named(job):
    line = "echo x >> runs; echo accuracy: $(wc -l < runs)"
    run(job, "--run", line, "--facts", '{"accuracy": "accuracy: (.*)"}', "--repeats", "2")
    (result,) = records(job, "result")
    assert result["facts"]["printed"]["accuracy"] == "1, 2, 3, …"  # the first is a warm-up


def test_a_program_that_is_asked_to_finish_ends_after_its_round(job):
    (job / "records.jsonl.finish").touch()
    done = run(job, "--run", "echo 5 items/sec", "--throughput", r"(\d+) items/sec", "--repeats", "1000")
    assert done.returncode == 0, done.stderr
    (result,) = records(job, "result")
    assert result["metrics"]["throughput"]["samples"] == 1


def test_the_last_value_of_a_json_field(job):
    done = run(
        job, "--run", f"{sys.executable} job.py", "--json-field", "train.rate", "--final", "--repeats", "2"
    )
    assert done.returncode == 0, done.stderr
    (result,) = records(job, "result")
    assert result["metrics"]["throughput"]["value"] == pytest.approx(100.7)
    assert result["setting"] == "as it is"
    assert len(records(job, "sample")) == 2


def test_without_a_pattern_the_wall_time_is_measured(job):
    settings = {"slow": {"arguments": ["0.2"]}, "fast": {"arguments": ["0.05"]}}
    done = run(job, "--run", "sleep", "--repeats", "6", **settings)
    assert done.returncode == 0, done.stderr
    slow, fast = records(job, "result")
    assert slow["metrics"]["duration"]["unit"] == "s"
    assert slow["metrics"]["duration"]["value"] > 0.2
    assert fast["facts"] == {"command": "sleep 0.05", "environment": {}, "warm_up_runs": 1}
    (comparison,) = records(job, "comparison")  # not its verdict, which a busy machine may leave open
    assert (comparison["baseline"], comparison["candidate"]) == ("slow", "fast")


def test_a_command_that_fails_is_a_failure_and_the_others_go_on(job):
    done = run(job, "--run", f"{sys.executable} job.py", good={}, bad={"arguments": ["--fail"]})
    assert done.returncode == 1
    (failure,) = records(job, "failure")
    assert failure["setting"] == "bad"
    assert failure["message"] == "the command ended with status 1: out of luck"
    assert [result["setting"] for result in records(job, "result")] == ["good"]
    assert not records(job, "end")[0]["ok"]


def test_a_command_that_prints_no_throughput_is_a_failure(job):
    done = run(job, "--run", "echo hello", "--throughput", "rate ([0-9]+)", "--repeats", "1")
    assert done.returncode == 1
    assert "no line of its output matches 'rate ([0-9]+)'" in records(job, "failure")[0]["message"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--run"),
        (["--run", "true", "--throughput", "a("], "not a regular expression"),
        (["--run", "true", "--throughput", "a"], "must have one group, not 0"),
        (["--run", "true", "--throughput", "(a)(b)"], "must have one group, not 2"),
        (["--run", "true", "--facts", '{"loss": "a"}'], "--facts: loss must have one group, not 0"),
        (["--run", "true", "--facts", "[1]"], "--facts must map names to regular expressions"),
        (["--run", "true", "--throughput", "(a)", "--json-field", "b"], "exclude each other"),
        (["--run", "true", "--final"], "--final needs"),
        (["--run", "true", "--settings", "[oops"], "--settings is not JSON"),
        (["--run", "true", "--settings", "[]"], "at least one setting"),
        (["--run", "true", "--settings", "@missing.json"], "missing.json: No such file"),
        (["--run", "true", "--repeats", "0"], "argument --repeats"),
        (["--run", "true", "--settings", '[{"name": 1}, {"x": 2}]'], "setting 2: unknown key 'x'"),
        (["--run", "true", "--settings", '[{"name": "a"}, {"name": "a"}]'], "more than one is called 'a'"),
    ],
)
def test_bad_arguments_exit_2_with_a_message(job, arguments, message):
    done = run(job, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (job / "records.jsonl").exists()


def test_settings_may_come_from_a_file(job):
    (job / "settings.json").write_text('[{"name": "a", "environment": {"HOME": null}}]')
    done = run(job, "--run", "echo ${HOME-unset}", "--repeats", "1", "--settings", "@settings.json")
    assert done.returncode == 0, done.stderr
    assert "unset" in done.stderr


def test_the_command_finds_the_programs_of_its_environment(job):
    venv.create(job / "environment", symlinks=True)
    folder = job / "environment" / "bin"
    done = run_python(
        folder / "python", job, "-m", "benchmarks.command", "--output", "records.jsonl", "--repeats", "1",
        "--settings", '[{"name": "own"}, {"name": "given", "environment": {"PATH": "/bin"}}]',
        "--run", "echo python3 is $(command -v python3), PATH is $PATH", PATH="/usr/bin:/bin",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"python3 is {folder}/python3, PATH is {folder}:/usr/bin:/bin" in done.stderr
    assert "PATH is /bin\n" in done.stderr


def test_every_fault_of_the_settings_is_reported_at_once():
    text = '[1, {"name": ""}, {"name": "a", "environment": {"N": 1}, "arguments": "x"}]'
    with pytest.raises(ValueError, match=r"setting 1.*setting 2: no name.*environment.*arguments"):
        read_settings(text)
    assert read_settings("") == [Setting(name="as it is")]


def test_an_interruption_ends_the_command_and_its_children(job):
    command = [sys.executable, "-m", "benchmarks.command", "--run", "sleep 3600 & echo $!; wait"]
    process = subprocess.Popen(command, cwd=job, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = ""
    while not line.strip().isdecimal():
        line = process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=600)
    assert process.returncode == 130
    wait_until(lambda: is_gone(int(line)), "the end of the child")


@pytest.mark.parametrize(
    "command",
    [
        "SPIN & S=$!; WAIT; kill $S; true",
        "SPIN & S=$!; WAIT; kill $S; wait $S; true",
        "SPIN & WAIT",
        "(SPIN &) ; WAIT",
        "nohup setsid SPIN & WAIT",
        "bash -c 'SPIN & WAIT' | cat",
    ],
)
def test_a_server_that_a_command_leaves_in_the_background_is_its_own_load(command, tmp_path):
    spin, done = tmp_path / "spin", tmp_path / "done"
    spin.write_text(
        f"#!{sys.executable}\nimport pathlib, time\nwhile time.process_time() < 0.5: pass\n"
        f"pathlib.Path({str(done)!r}).touch()\ntime.sleep(2)\n"
    )
    spin.chmod(0o755)
    waiting = f"while [ ! -e {done} ]; do sleep 0.05; done"
    measured = variant(f"true\n{command.replace('SPIN', str(spin)).replace('WAIT', waiting)}")
    before = usage.read_cpu_times().busy
    measured.measure(0)
    own = measured.cpu_s()
    assert 0.5 <= own <= usage.read_cpu_times().busy - before + 0.1
    assert measured.cpu_s() >= own
    for left in measured._left():
        os.kill(left, signal.SIGKILL)


def variant(command, echo=None, **changes):
    arguments = {
        "setting": Setting(name="x"), "reader": None, "final": False, "counted": "images", "warm_up_runs": 0,
        "environment": dict(os.environ),
        "echo": echo or Path(os.devnull).open("wb", buffering=0),  # noqa: SIM115  for the whole test
    }  # fmt: skip
    return CommandVariant(command=command, **{**arguments, **changes})


def test_what_a_command_imports_lies_in_its_run_and_ends_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("work").mkdir()
    where = (
        f"""{sys.executable} -c 'import dlcloud_report; open("where", "w").write(dlcloud_report.__file__)'"""
    )
    variant(where, folder=tmp_path / "work", records=Path("records.jsonl")).measure(0)
    assert Path("work/where").read_text().startswith(f"{tmp_path}/dlcloud-report-")


def test_numbers_are_read_as_people_write_them():
    pattern = Pattern.parse(r"rate: (\S+)")
    assert pattern.values("rate: 1,234.5 rate: 2e3") == [1234.5, 2000.0]
    assert pattern.values("nothing") == []
    for bad in ("rate: fast", "rate: nan", "rate: 0", "rate: -3"):
        with pytest.raises(VariantError, match="not a number above 0"):
            pattern.values(bad)


@pytest.mark.parametrize(
    ("pattern", "line", "value"),
    [
        (r"images/sec: ([0-9.]+)", "total images/sec: 12,622.33", 12622.33),
        (r"([0-9]+(?:\.[0-9]+)?)\s*images/s", "1,000.4 images/s", 1000.4),
        (r"([0-9]+(?:\.[0-9]+)?)\s*images/s", "1.262e+04 images/s", 12620.0),
        (r"rate ([0-9.]+)", "rate 1.2k images/s", 1200.0),
        (r"rate ([0-9.]+)", "rate 12.5, 7 of 9", 12.5),
        (r"rate ([0-9.]+)", "rate 12.5,7", 12.5),
        (r"(\d+)\.\d+ s", "it took 12.5 s", 12.0),
        (r",([0-9.]+)$", "3,1200,12.5", 12.5),
        (r"r=([0-9.]+)", "r=12.5.", 12.5),
        (r"r=([0-9.]+)", "r=12.5ms", 12.5),
        (r".*([0-9.]+) images/s", "step 7: 12,622.33 images/s", 12622.33),
        (r"loss: ([0-9]+).*", "loss: 12.75 end", 12.75),
        (r"r=([0-9]+\.[0-9]+)", "r=234.5e2", 23450.0),
        (r"([0-9]+\.[0-9]+) img", "1,234.56 img", 1234.56),
        (r"1,([0-9]+)", "1,500", 500.0),
        (r"([0-9]+)\.[0-9]+", "12.5", 12.0),
        (r"r=([0-9.]+)", "r=12'622.5 x", 12622.5),
        (r"([0-9.]+) img", "12\u202f622.5 img", 12622.5),
        (r"rate ([0-9.]+)", "rate 1.2kimg/s", 1200.0),
        (r"rate ([0-9.]+)", "rate 1.2 kimg/s", 1200.0),
        (r"rate ([0-9.]+)", "rate 3.5Mtok/s", 3.5e6),
        (r"rate ([0-9.]+)", "rate 2 k tokens/sec", 2000.0),
        (r"rate ([0-9.]+)", "rate 2K samples per second", 2000.0),
        (r"rate ([0-9.]+)", "rate 1.5MiB/s", 1.5 * 2**20),
        (r"rate ([0-9.]+)", "rate 1.2e3kit/s", 1.2e6),
        (r", ([0-9.]+)", " 45%| 9/20 [00:01<00:01, 1.27kit/s]", 1270.0),
        (r"rate ([0-9.]+)", "rate 12Tokens/s", 12.0),
        (r"rate ([0-9.]+)", "rate 12 Games/s", 12.0),
        (r"rate ([0-9.]+)", "rate 12 GPUs", 12.0),
        (r"rate ([0-9.]+)", "rate 12 km", 12.0),
        (r"([0-9.]+)\s*kimg/s", "1.2kimg/s", 1.2),
        (r"([0-9.]+) ?k?img/s", "1.2 kimg/s", 1200.0),
        (r"step ([0-9]+)", "step 12 Mean loss 3", 12.0),
        (r"rate ([0-9.]+)", "rate 97%", 97.0),
        (r"([0-9.]+) images/s", "step 7 234.5 images/s", 234.5),
        (r"^[0-9]+ ([0-9.]+)", "7 234.5", 234.5),
        (r"([0-9.]+) images/s", "0.5 345 images/s", 345.0),
        (r"rate ([0-9.]+)", "rate 12 1281 0.5", 12.0),
    ],
)
def test_a_number_is_never_cut_in_two(pattern, line, value):
    assert Pattern.parse(pattern).values(line) == [value]


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"rate ([0-9.]+)", "rate 12,5 images/s"),
        (r"rate ([0-9.]+)", "rate 1.234,56 images/s"),
        (r"rate ([0-9.]+)", "rate 10.0.0.1"),
        (r"rate ([0-9.]+)", "rate 3kfoo/s"),
        (r"rate ([0-9.]+)", "rate 12 345"),
        (r"rate ([0-9.]+)", "rate 1 234 567.8 images/s"),
        (r"([0-9.]+) images/s", "rate 1 234.5 images/s"),
        (r".*?([0-9]+) images/s", "rate 12 345 images/s"),
    ],
)
def test_a_number_that_may_mean_two_things_is_refused_with_its_line(pattern, line):
    with pytest.raises(VariantError, match="not a number above 0, in the line 'rate"):
        Pattern.parse(pattern).values(line)


def test_a_prefix_that_is_part_of_the_unit_does_not_multiply():
    for unit, line in (("kimg", "at 1.2kimg/s"), ("kimg/s", "at 1.2 kimg/s"), ("MB", "at 1.2MB/s")):
        assert Pattern.parse(r"at ([0-9.]+)", unit).values(line) == [1.2]
    assert Pattern.parse(r"at ([0-9.]+)", "images").values("at 1.2kimg/s") == [1200.0]


@pytest.mark.parametrize(
    "pattern", [r".*loss: (\d+)", r"(\d+) images/s", r"\b\w*loss\s*(\d+)", r"(\S+) images/s"]
)
@pytest.mark.parametrize("text", ["x", "1", "1,", "1 ", "a_1."])
def test_a_long_line_takes_time_that_grows_with_its_length(pattern, text):
    reader = Pattern.parse(pattern)
    seconds = []
    for size in (1 << 13, 1 << 15):
        began = time.process_time()
        reader.values(text * (size // len(text)))
        seconds.append(time.process_time() - began)
    assert seconds[1] < 8 * seconds[0] + 0.2


@pytest.mark.parametrize(
    ("pattern", "may_take_forever"),
    [
        *[(p, True) for p in (r"([0-9]+,?)+x", r"(?:\d+\.?\d*)+ (\d)", r"(.*,)+", r"((\w+\s*)*)x")],
        (r"(?:(?:x+)+)+(y)", True),
        *[(p, False) for p in (r"([0-9]+,)+x", r"images/sec: ([0-9.]+)", r".*step.*loss: ([0-9.]+).*")],
        *[(p, False) for p in (r"(?:[^,]*,){3}(\d+)", r"(?:\w+ )*(\d+)", r"(?:foo|bar)+ (\d)")],
        (r"([+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*images/s", False),
    ],
)
def test_a_pattern_that_may_take_forever_is_found_and_others_are_not(pattern, may_take_forever):
    assert repeats_in_repeats(pattern) is may_take_forever


def test_a_pattern_that_takes_too_long_ends_the_run_with_its_name(monkeypatch):
    monkeypatch.setattr(output_module, "LIMIT_S", 0.2)
    lines = OutputLines(Pattern.parse(r"(?:.*)(?:.*)(?:.*)x(\d)"))
    with pytest.raises(VariantError, match="the pattern of the throughput takes more than"):
        lines.feed(b"y" * 2000 + b"x\n")


def test_figures_of_a_long_line_are_all_read_once():
    line = "".join(f"step {number}: {number}.5 images/s, " for number in range(1, 2000))
    assert Pattern.parse(r"([0-9.]+) images/s").values(line) == [number + 0.5 for number in range(1, 2000)]
    for padding in range(1000, 1100):
        assert Pattern.parse(r"([0-9.]+) images/s").values(
            "x" * padding + " 12,622.5 images/s" + "y" * 9000
        ) == [12622.5]


def test_json_lines_without_the_field_are_passed_over():
    field = JsonField("a.b")
    assert field.values('  {"a": {"b": 3}}') == [3.0]
    for other in ("text", "{broken", '{"a": 1}', '{"b": 1}', "[1]"):
        assert field.values(other) == []


def test_values_of_the_warm_up_do_not_count():
    values = after_warm_up([10.0, 20.0, 40.0, 100.0, 101.0, 100.0, 99.0, 100.0, 101.0])
    assert values.settled
    assert min(values.counted) > 90
    assert after_warm_up([1.0, 2.0]).counted == (1.0, 2.0)
    endless = after_warm_up([2.0**n for n in range(10)])
    assert (endless.settled, len(endless.counted)) == (False, 5)


def test_arguments_are_quoted_and_units_named(tmp_path):
    with (tmp_path / "echo").open("wb") as echo:
        setting = Setting(name="a", arguments=("two words", "$HOME"))
        printing = variant("printf '%s|'", echo, setting=setting, reader=Pattern.parse("(1)"), warm_up_runs=1)
        assert printing.unit == "images/s"
        printing.warm_up(1.0)
        printing.close()
    assert (tmp_path / "echo").read_text() == "two words|$HOME|"


def test_throughputs_are_read_wherever_output_is_cut():
    output = "a 1\r\nb é 2\rc 3\n\n4".encode()
    for size in range(1, len(output) + 1):
        lines = OutputLines(Pattern.parse(r"(\d)\s*$"))
        for start in range(0, len(output), size):
            lines.feed(output[start : start + size])
        lines.close()
        assert (lines.values, lines.last) == ([1, 2, 3, 4], "4"), size


def test_a_line_without_end_is_read_in_bounded_memory():
    lines = OutputLines(Pattern.parse(r"(\d+)"))
    for _ in range(40):
        lines.feed(b"x" * (LONGEST_LINE // 10))
    lines.feed(b" 7\n")
    assert (lines.values, len(lines.last)) == ([7], LONGEST_LINE + 2)


REPORTING = """
import time, dlcloud_report
for step in range(9):
    time.sleep(0.001)
    dlcloud_report.step(100)
"""


def test_a_program_reports_its_throughput_in_one_line(alone):
    (alone / "job.py").write_text(REPORTING)
    done = run(alone, "--run", f"{sys.executable} job.py", "--reported", "--repeats", "2")
    assert done.returncode == 0, done.stderr
    (result,) = records(alone, "result")
    assert 0 < result["metrics"]["throughput"]["value"] < 100_000
    assert len(records(alone, "sample")) > 2


def test_any_language_reports_through_a_file(alone):
    shell = 'echo 50 >> "$DLCLOUD_REPORT"; echo 200 >> "$DLCLOUD_REPORT"'
    done = run(alone, "--run", shell, "--reported", "--final", "--repeats", "2")
    assert done.returncode == 0, done.stderr
    (result,) = records(alone, "result")
    assert result["metrics"]["throughput"]["value"] == 200


@pytest.mark.parametrize(
    ("shell", "message"),
    [
        ("true", "there was none"),
        ('echo fast >> "$DLCLOUD_REPORT"', "reads 'fast', not a number above 0"),
        (f'{sys.executable} -c "import dlcloud_report; dlcloud_report.throughput(-1)"', "above 0, not -1.0"),
    ],
)
def test_a_report_that_is_none_fails_the_setting(alone, shell, message):
    done = run(alone, "--run", shell, "--reported", "--repeats", "1")
    assert done.returncode == 1
    (failure,) = records(alone, "failure")
    assert message in failure["message"]


def test_a_report_outside_of_a_benchmark_does_nothing(monkeypatch):
    monkeypatch.delenv("DLCLOUD_REPORT", raising=False)
    reporting.throughput(3)
    reporting.step(3)


def test_no_secret_is_recorded(alone):
    done = run(
        alone,
        "--run", "MY_TOKEN=run-secret true --password hunter2 --seed 1 s3://user:address-secret@host",
        "--repeats", "1",
        plain={},
        other={
            "environment": {"API_KEY": "env-secret", "MAX_TOKENS": "512"},
            "arguments": ["--token", "arg"],
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    written = (alone / "records.jsonl").read_text()
    for secret in ("run-secret", "hunter2", "address-secret", "env-secret", '"arg"', "arg "):
        assert secret not in written
    environment = records(alone, "result")[1]["facts"]["environment"]
    assert environment == {"API_KEY": "(hidden)", "MAX_TOKENS": "512"}
    assert "--seed 1" in written


def test_names_of_secrets_are_told_from_others():
    secret = ["AWS_ACCESS_KEY_ID", "hf-token", "DB_PASSWORD", "CLIENT_SECRET", "apiKey"]
    others = ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "OMP_NUM_THREADS", "KEYBOARD"]
    assert [name for name in secret + others if is_secret_name(name)] == secret


def test_secrets_of_the_launcher_are_masked_wherever_they_stand():
    environment = {"DLCLOUD_SECRETS": "TOKEN PEM OTHER", "TOKEN": "value-0001", "PEM": "short\nline-0002"}
    texts = masking.secret_texts(environment)
    record = {"cause": "a value-0001 b", "words": ["line-0002", 1.5, None], "value-0001": "short"}
    assert masking.mask(record, texts) == {"cause": "a *** b", "words": ["***", 1.5, None], "***": "short"}
    assert masking.secret_texts({"TOKEN": "value-0001"}) == ()


ARGUMENTS = ("--lr", "0 .1", "$HOME", "it's")
SHOW = "printf '%s|'"


@pytest.mark.parametrize(
    "command",
    [
        SHOW,
        f"{SHOW}\n",
        f"\n  # prints\n{SHOW} \\\n",
        f"{SHOW}  # the last comment",
        f"{SHOW} \\\n  # one\n\n# more, with 'a quote'\n",
        f'{SHOW} "$@"',
        f'true\n{SHOW} "$@"\ntrue\n',
        f'for word in "${{@}}"; do {SHOW} "$word"; done',
        f"x='$1'; {SHOW}",
        f"x='a\nb'; {SHOW}",
        f"echo '$@' >/dev/null; {SHOW}",
    ],
)
def test_arguments_reach_the_program(command):
    assert takes_arguments(command)
    expected = "".join(f"{word}|" for word in ARGUMENTS)
    for words in (shell_words(command, ARGUMENTS), shell_words(with_arguments(command, ARGUMENTS))):
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == expected


def test_arguments_of_the_tiny_form_come_last():
    command = with_arguments(f'true\n{SHOW} "$@"\n', ["--steps", "2"])
    assert (
        subprocess.run(shell_words(command, ["a"]), capture_output=True, check=True).stdout == b"a|--steps|2|"
    )


@pytest.mark.parametrize(
    "command", ["python p.py\necho finished", "cd x\npython p.py\n", "a\nawk '{print $1}'"]
)
def test_a_script_that_reads_no_arguments_takes_none(command):
    assert not takes_arguments(command)


def test_python_is_python3_if_an_image_has_no_program_of_that_name(tmp_path, monkeypatch):
    monkeypatch.setattr(variants, "__file__", str(tmp_path / "benchmarks" / "command" / "variant.py"))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    (tmp_path / "programs").mkdir()
    for _ in range(2):  # two commands of one run
        path = variants.activate({"PATH": str(tmp_path / "programs")})["PATH"]
    folders = [Path(folder) for folder in path.split(os.pathsep)]
    assert next(one / "python" for one in folders if (one / "python").exists()).readlink() == Path(
        sys.executable
    )
    assert variants.activate({"PATH": path}) == {"PATH": path}


def measure(tmp_path, command, **changes):
    (tmp_path / "work").mkdir()
    with (tmp_path / "echo").open("wb") as echo:
        folder, reader = tmp_path / "work", Pattern.parse("([0-9.]+) images/s")
        measured = variant(command, echo, **{"folder": folder, "reader": reader, **changes})
        try:
            return measured.measure(0.0), (tmp_path / "echo").read_text()
        finally:
            measured.close()


def test_every_line_runs_in_the_work_folder(tmp_path):
    measure(tmp_path, "sleep 60 &\npwd > first\necho '5 images/s'\npwd > second\n")
    folder = tmp_path / "work"
    assert (folder / "first").read_text() == (folder / "second").read_text() == f"{folder}\n"


def test_a_run_ends_with_its_command_though_a_child_keeps_its_output(tmp_path):
    began = time.monotonic()
    run, _ = measure(tmp_path, "(sleep 600 >&2) &\necho done\n", reader=None)
    assert run.value < 300
    assert time.monotonic() - began < 300


def test_what_a_pipe_still_holds_is_read(tmp_path):
    _, echo = measure(tmp_path, "exec > >(sleep 0.2; cat; echo last)\necho '5 images/s'\n")
    assert echo == "5 images/s\nlast\n"


def test_a_crash_before_a_pipe_fails_the_run(tmp_path):
    with pytest.raises(VariantError, match="ended with status 3: 5 images/s"):
        measure(tmp_path, "(echo '5 images/s'; exit 3) | tee log\n")


WAIT = "echo > begun; while [ ! -e go ]; do sleep 0.02; done"


def begin(folder, number, command):
    (folder / str(number)).mkdir()
    words = ["--run", f"cd {number} && {command}", "--turn", "turn", "--repeats", "1", "--exact"]
    output = ["--output", f"{number}/records"]
    return subprocess.Popen([sys.executable, "-m", "benchmarks.command", *output, *words], cwd=folder)


def test_a_command_waits_for_the_one_before(alone):
    first = begin(alone, 1, WAIT)
    wait_until((alone / "1" / "begun").exists, "the first command")
    second = begin(alone, 2, "echo > begun")
    wait_until((alone / "2" / "records").exists, "the second program")
    wait_until(lambda: "preparing" in (alone / "2" / "records").read_text(), "its turn")
    assert not (alone / "2" / "begun").exists()
    (alone / "1" / "go").touch()
    assert first.wait(600) == second.wait(600) == 0
    assert (alone / "2" / "begun").exists()


def test_a_command_that_is_killed_waits_for_nobody_else(alone):
    first = begin(alone, 1, WAIT)
    wait_until((alone / "1" / "begun").exists, "the first command")
    second = begin(alone, 2, "true")
    first.kill()
    first.wait(600)
    assert second.wait(600) == 0
    (alone / "1" / "go").touch()


def test_a_turn_that_cannot_be_taken_is_named(alone):
    (alone / "turn").mkdir()
    assert begin(alone, 1, "true").wait(600) == 1
    (failure,) = read_records(alone / "1" / "records", "failure")
    assert "--turn turn: Is a directory" in failure["message"]


@pytest.mark.parametrize(
    ("items", "count", "shares"),
    [
        ("abcd", 2, ["ab", "cd"]),
        ("abcde", 2, ["ab", "cde"]),
        ("abc", 3, ["a", "b", "c"]),
        ("ab", 3, ["a", "b", "a"]),
        ("", 2, ["", ""]),
    ],
)
def test_shares_are_about_equal_and_never_empty(items, count, shares):
    assert ["".join(take_share(items, index, count)) for index in range(count)] == shares


def test_the_logical_cpus_of_a_core_stay_together(tmp_path):
    for cpu in range(4):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "core_id").write_text(f"{cpu % 2}\n")
    assert cores_of(range(4), tmp_path) == [(0, 2), (1, 3)]
    assert cores_of([0, 9], tmp_path) == [(0,), (9,)]


def test_what_the_user_has_set_stays():
    assert variables({"OMP_NUM_THREADS": "7"}, [(0,), (1,)], ["1"]) == {
        "OMP_NUM_THREADS": "7",
        "MKL_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "1",
    }


def test_a_program_is_found_by_path_and_pinned():
    program = "import os; print(len(os.sched_getaffinity(0)))"
    words = [sys.executable, "-m", "dlcloud.benchmarks.command.share", "0", "64", "python3", "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env={**os.environ})
    assert 1 <= int(done.stdout) <= len(os.sched_getaffinity(0))
