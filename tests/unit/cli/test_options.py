"""Options of many commands: numbers, durations, and the notification at the end."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import click
import pytest

from dlcloud.cli import main as cli
from dlcloud.cli.options import Hours, NodeCounts, Number, notify_end, notify_option
from dlcloud.model.errors import InstanceError


def parameters(command, path="dlcloud"):
    """Yield every parameter of a command and of its subcommands, with the command's words."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context) or cli.COMMANDS:
            yield from parameters(command.get_command(context, name), f"{path} {name}")
    yield from ((path, parameter) for parameter in command.params)


def test_every_number_of_an_option_is_checked():
    unchecked = [
        (path, parameter.name)
        for path, parameter in parameters(cli.dlcloud)
        if isinstance(parameter.type, click.types.FloatParamType) and not isinstance(parameter.type, Number)
    ]
    assert unchecked == []


@pytest.mark.parametrize(
    ("kind", "texts", "message"),
    [
        (NodeCounts(), ["0", "-1", "a", "", " ", "1,,2", "1001"], "not a list of numbers from 1 to 1000"),
        (Number(), ["nan", "inf", "-Infinity", "1e999", "x", ""], None),
        (Number(0, 2), ["3"], None),
        (Hours(), ["soon", "0", "-1h", "nan", "400d"], "not a duration such as 52h"),
    ],
    ids=["node counts", "finite", "within limits", "duration"],
)
def test_what_an_option_cannot_mean_is_refused(kind, texts, message):
    for text in texts:
        with pytest.raises(click.BadParameter, match=message):
            kind.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "hours"), [("52", 52), ("52h", 52), ("3d", 72), ("1d 12h", 36), ("90m", 1.5)]
)
def test_a_duration_is_a_number_of_hours_or_has_units(text, hours):
    assert Hours().convert(text, None, None) == hours


def test_a_number_within_its_limits_is_taken():
    assert Number(0, 2).convert("1.5", None, None) == 1.5


@pytest.fixture
def webhook():
    """Yield an address, and what was posted there."""
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", bodies
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_gets_the_message_as_json(webhook):
    address, bodies = webhook
    notify_end(address, "dlcloud up train.yaml", "")
    notify_end(address, "dlcloud up train.yaml", "i-1 is gone")
    assert bodies == [
        {"text": "dlcloud up train.yaml: done", "status": "done"},
        {"text": "dlcloud up train.yaml: i-1 is gone", "status": "failed"},
    ]


def run(tmp_path, monkeypatch, *, fails=False, arguments=None):
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path))

    @click.command()
    @notify_option("up")
    def command():
        if fails:
            raise InstanceError("program failed:\na long log")

    default = ["--notify", f'echo "$DLCLOUD_STATUS $DLCLOUD_MESSAGE" > {tmp_path}/said']
    command.main(arguments or default, standalone_mode=False)


def test_a_command_gets_message_and_status_in_variables(tmp_path, monkeypatch):
    run(tmp_path, monkeypatch)
    assert (tmp_path / "said").read_text() == "done dlcloud up: done\n"
    with pytest.raises(InstanceError):
        run(tmp_path, monkeypatch, fails=True)
    assert (tmp_path / "said").read_text() == "failed dlcloud up: program failed\n"


def test_the_file_of_the_home_notifies_without_an_option(tmp_path, monkeypatch):
    (tmp_path / "notify").write_text(f"touch {tmp_path}/said\n")
    run(tmp_path, monkeypatch, arguments=["--notify", ""])
    assert (tmp_path / "said").exists()


def test_a_failing_notification_is_a_warning_without_its_address(capsys):
    notify_end("exit 3; secret-token", "dlcloud up", "")
    notify_end("http://127.0.0.1:1/secret-token", "dlcloud up", "")
    text = capsys.readouterr().err
    assert text.count("warning: --notify failed") == 2
    assert "secret-token" not in text
