"""The front door: fast where nothing heavy is needed, exit codes, and no traceback, ever."""

import json
import os
import pty
import re
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from urllib.request import proxy_bypass

import pytest

from dlcloud.cli.main import COMMANDS, never_proxy_this_machine, report_error
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.partitions import partition_of
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from tests.fakes.samples import cluster
from tests.unit.cli.conftest import ROOT, START

HEAVY = {
    "boto3",
    "botocore",
    "paramiko",
    "cryptography",
    "pydantic",
    "yaml",
    "moto",
    "asyncssh",
    "rich",
    "sqlite3",
}


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--version"]])
def test_help_imports_nothing_heavy(dlcloud_alone, words):
    done = dlcloud_alone(*words)
    assert done.status == 0
    assert "click" in done.modules
    assert done.modules & (HEAVY | {"tabulate"}) == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_imports_nothing_heavy(dlcloud_alone, command):
    done = dlcloud_alone(command, "--help", COLUMNS="80")
    assert done.status == 0, done.stderr
    assert done.stdout.startswith("Usage:")
    assert done.modules & HEAVY == set()
    # The kinds of policies and of simulations are one word of their usage.
    assert max(map(len, done.stdout.splitlines())) <= (100 if command in {"policy", "simulate"} else 80)


def test_help_names_every_command_in_whole_lines(dlcloud):
    output = dlcloud("--help", COLUMNS="80").stdout
    assert [name for name in COMMANDS if f"  {name} " not in output] == []
    assert "..." not in output.partition("Commands:")[2]


@pytest.mark.parametrize("words", [["status"], ["status", "--all"], ["status", "-o", "json"]])
def test_status_of_an_empty_home_imports_no_boto3_paramiko_or_pydantic(dlcloud_alone, words):
    done = dlcloud_alone(*words)
    assert done.status == 0, done.stderr
    assert (
        done.modules & {"boto3", "botocore", "paramiko", "cryptography", "pydantic", "moto", "rich"} == set()
    )


def test_an_empty_home_is_made_for_the_user_only_and_nothing_is_up(dlcloud, home):
    assert dlcloud("status").stdout == "nothing is up\n"
    assert {stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*") if path.is_file()} <= {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (home, home / "logs")} == {0o700}
    assert json.loads(dlcloud("status", "-o", "json").stdout) == {
        "schema": 1,
        "command": "status",
        "result": {"records": []},
    }
    assert "nothing has been measured yet" in dlcloud("cost-report").stdout


@pytest.mark.parametrize(
    "words",
    [["surprise"], ["up"], ["status", "--surprise"], ["status", "-o", "xml"], ["exec", "c"], ["local", "x"]],
)
def test_a_usage_error_exits_2_without_a_traceback(dlcloud, words):
    done = dlcloud(*words)
    assert done.status == 2
    assert "Usage:" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["up", "quickstart", "--on", "batch", "--detach"], "--on batch and --detach exclude each other"),
        (["up", "quickstart", "--dry-run", "--cidr", "everybody"], "--cidr"),
        (["up", "quickstart", "--dry-run", "--cidr", "10.0.0.1/8"], "--cidr"),
        (["up", "quickstart", "--dry-run", "--cidr", "1.2.3"], "--cidr"),
        (["up", "missing.yaml"], "\nhint: "),
        (["down", "missing"], "\nhint: "),
        (["logs", "nothing"], "\nhint: "),
        (["exec", "missing", "true"], "\nhint: dlcloud status lists what is up"),
        (["ssh"], "\nhint: dlcloud up quickstart"),
    ],
)
def test_what_cannot_be_done_exits_2_with_a_message_or_a_hint(dlcloud, words, message):
    done = dlcloud(*words)
    assert done.status == 2
    assert message in done.stderr
    assert done.stderr.startswith(("error: ", "Usage: "))
    assert done.stdout == ""


def test_faults_of_a_recipe_are_lines_and_nothing_is_touched(dlcloud, home):
    (home.parent / "r.yaml").write_text(
        "name: Bad Name\ninstances:\n  types: [c7i]\n  count: 0\n  markt: spot\n"
        "workload:\n  repeats: many\n  command: x\n"
    )
    done = dlcloud("up", "r.yaml")
    assert done.status == 2
    assert re.findall(r"r\.yaml:(\d+): ([a-z.\[\]0]+)", done.stderr) == [
        ("1", "name"),
        ("3", "instances.types[0]"),
        ("4", "instances.count"),
        ("5", "instances.markt"),
        ("7", "workload.repeats"),
    ]


@pytest.mark.parametrize("form", [["-o", "json"], ["--output", "json"], ["--output=json"]])
def test_an_error_is_json_where_json_was_asked_for(dlcloud, form):
    done = dlcloud("down", "missing", *form)
    assert done.status == 2
    output = json.loads(done.stdout)
    assert (output["schema"], output["command"]) == (1, "down")
    assert output["error"]["kind"] == "RecipeError"
    assert output["error"]["exit_code"] == 2
    assert "missing" in output["error"]["message"]
    assert output["error"]["hint"]
    assert done.stderr.startswith("error: ")


def make_no_folder(home):
    home.touch()


def write_no_database(home):
    home.mkdir()
    (home / "store.sqlite").write_text("not a database " * 100)


def write_an_unknown_state(home):
    home.mkdir()
    with closing(Database(home / "store.sqlite")) as database:
        Clusters(database).add(cluster())
    with closing(sqlite3.connect(home / "store.sqlite")) as raw:
        raw.execute("UPDATE clusters SET state = 'a-state-that-is-none'")
        raw.commit()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (make_no_folder, "DLCLOUD_HOME"),
        (write_no_database, "cannot be used"),
        (write_an_unknown_state, "the store holds a cluster that cannot be read"),
    ],
)
def test_a_home_that_cannot_be_used_is_no_bug(dlcloud, home, spoil, message):
    spoil(home)
    before = [path.read_bytes() for path in home.glob("*.sqlite")]
    done = dlcloud("status")
    assert done.status == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.read_bytes() for path in home.glob("*.sqlite")] == before


def test_a_bug_exits_70_with_a_log_and_no_traceback(monkeypatch, capsys, home):
    monkeypatch.setenv("DLCLOUD_HOME", str(home))
    status = report_error(RuntimeError("what no one expected"), command="status", arguments=["-o", "json"])
    printed = capsys.readouterr()
    assert status == 70
    assert "Traceback" not in printed.err
    (path,) = re.findall(r"\S+-bug-\d+\.log", printed.err)
    (log,) = (home / "logs").glob("*-bug-*.log")
    assert path == str(log)
    assert "RuntimeError: what no one expected" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert json.loads(printed.out)["error"]["exit_code"] == 70


def test_the_schema_is_json(dlcloud):
    assert json.loads(dlcloud("schema").stdout)["title"] == "dlcloud recipe"


def test_without_credentials_aws_is_unreachable_and_not_called(dlcloud, home):
    (home.parent / "r.yaml").write_text(
        "name: a\ninstances: {types: [c7i.xlarge]}\nworkload: {command: 'true'}\n"
    )
    nowhere = str(home.parent / "none")
    done = dlcloud(
        "up", "r.yaml", "--dry-run", "--cidr", "203.0.113.7/32",
        AWS_EC2_METADATA_DISABLED="true", AWS_CONFIG_FILE=nowhere, AWS_SHARED_CREDENTIALS_FILE=nowhere,
    )  # fmt: skip
    assert done.status == 3
    assert "there are no AWS credentials" in done.stderr
    assert "aws configure" in done.stderr


LEAVING = """
import atexit, threading, time
from dlcloud.cloud.api.clients import Clients
from dlcloud.cloud.api.partitions import partition_of
from dlcloud.cli.main import main
def work():
    threading.main_thread().join()
    time.sleep(0.2)
    print("thread")
atexit.register(print, "at exit")
threading.Thread(target=work, daemon={daemon}).start()
main()
"""


@pytest.mark.parametrize(("daemon", "last"), [(True, ["at exit"]), (False, ["thread", "at exit"])])
def test_a_command_leaves_as_python_does_and_waits_for_its_threads(home, daemon, last):
    command = [sys.executable, "-c", LEAVING.format(daemon=daemon), "recipes"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DLCLOUD_HOME": str(home)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-len(last) :] == last
    assert done.stderr == ""


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_ends_no_command_with_a_traceback(tmp_path, closed):
    program = f"{sys.executable} -c 'from dlcloud.cli.main import main; main()' status {closed}"
    environment = os.environ | {"DLCLOUD_HOME": str(tmp_path)}
    done = subprocess.run(["sh", "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if closed == ">&-":
        assert done.stderr == "standard output is closed: the result is not printed\n"


def test_no_proxy_stands_between_a_command_and_the_local_ec2(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.delenv("no_proxy", raising=False)
    never_proxy_this_machine()
    for host in ("127.0.0.1:4566", "localhost", "169.254.169.254", "example.org"):
        assert proxy_bypass(host)
    assert not proxy_bypass("ec2.us-east-1.amazonaws.com")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ls", "status"),
        ("ps", "status"),
        ("run", "up"),
        ("rm", "down"),
        ("cost", "cost-report"),
        ("check", "doctor"),
    ],
)
def test_words_of_other_tools_are_understood(dlcloud, typed, meant):
    assert dlcloud(typed, "--help").stdout.startswith(f"Usage: dlcloud {meant} ")
    assert dlcloud("help", meant).stdout.startswith(f"Usage: dlcloud {meant} ")


def test_help_and_version_are_words_too(dlcloud):
    assert dlcloud("help").stdout == dlcloud("--help").stdout
    assert dlcloud("version").stdout == dlcloud("--version").stdout


def test_stop_says_that_disks_are_lost(dlcloud):
    assert "what is on their disks is lost" in dlcloud("stop", "--help").stderr


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "--spot", "-i", "c5.large"],
        ["bench", "--market", "spot", "--type", "c5.large"],
        ["up", "--spot"],
    ],
)
def test_old_and_new_spellings_of_type_and_market_are_understood(dlcloud, words):
    done = dlcloud(*words, "--recipe" if words[0] == "bench" else "--dry-run", "no-such-recipe")
    assert "neither a file nor a bundled recipe" in done.stderr


@pytest.mark.parametrize("broken", [{"AWS_PROFILE": "nothere"}, {"AWS_CONFIG_FILE": "config"}])
def test_a_rehearsal_needs_no_sound_aws_configuration(tmp_path, monkeypatch, broken):
    (tmp_path / "config").write_text("[default")
    monkeypatch.chdir(tmp_path)
    for name, value in broken.items():
        monkeypatch.setenv(name, value)
    clients = Clients(region="eu-central-1", endpoint_url="http://127.0.0.1:9", access_key=("id", "secret"))
    assert clients.get("ec2").meta.region_name == "eu-central-1"
    assert partition_of("cn-north-1").name == "aws-cn"


def completed(dlcloud, *words):
    typed = " ".join(["dlcloud", *words])
    done = dlcloud(_DLCLOUD_COMPLETE="bash_complete", COMP_WORDS=typed, COMP_CWORD=str(len(words)))
    return [line.partition(",") for line in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(dlcloud, shell):
    done = dlcloud("completion", shell)
    assert done.status == 0
    assert "_DLCLOUD_COMPLETE" in done.stdout


def test_recipes_and_files_follow_up(dlcloud):
    kinds = completed(dlcloud, "up", "quick")
    assert ("plain", ",", "quickstart") in kinds
    assert "file" in [kind for kind, _, _ in kinds]


def test_clusters_that_are_up_follow_status(dlcloud, home):
    home.mkdir(mode=0o700)
    with closing(Database(home / "store.sqlite")) as database:
        Clusters(database).add(cluster("myelastic-cdf7"))
    assert completed(dlcloud, "status", "my") == [("plain", ",", "myelastic-cdf7")]


def test_types_follow_the_option_of_bench(dlcloud):
    assert ("plain", ",", "c7i.xlarge") in completed(dlcloud, "bench", "-i", "c7i.x")


TEXT = (ROOT / "templates" / "skill.md").read_text("utf-8")


def printed_on_a_terminal(home, words, **environment):
    controller, terminal = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    subprocess.run(
        [sys.executable, "-c", START, *words],
        env=kept | {"PYTHONPATH": str(ROOT), "DLCLOUD_HOME": str(home), "TERM": "xterm", **environment},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        timeout=60,
        check=False,
    )
    os.close(terminal)
    printed = b""
    while True:
        try:
            printed += os.read(controller, 65536)
        except OSError:  # all is read
            os.close(controller)
            return printed.decode()


def test_a_person_sees_colours_on_a_terminal(home):
    assert "\033[" in printed_on_a_terminal(home, ["status", "nope"])


@pytest.mark.parametrize("variable", ["CLAUDECODE", "AI_AGENT", "CODEX_SANDBOX"])
def test_an_agent_reads_plain_lines_on_a_terminal(home, variable):
    printed = printed_on_a_terminal(home, ["status", "nope"], **{variable: "1"})
    assert "no cluster" in printed
    assert "\033[" not in printed


def test_an_agent_is_not_asked(home, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('64 images/s')\n")
    printed = printed_on_a_terminal(home, ["init", str(script)], CLAUDECODE="1")
    assert "train.yaml" in printed
    assert "[y/N]" not in printed


def test_the_skill_is_installed_where_agents_look(dlcloud, tmp_path):
    for _ in range(2):
        done = dlcloud("skill", "--install", HOME=str(tmp_path))
        assert done.status == 0, done.stderr
    for folder in (".claude", ".agents"):
        path = tmp_path / folder / "skills" / "dlcloud" / "SKILL.md"
        assert path.read_text("utf-8") == TEXT
        assert str(path) in done.stdout
