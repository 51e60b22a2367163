"""The notification at the end: a command, a webhook, and the file of the home."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import click
import pytest

from dlcloud.cli.options import notify_end, notify_option
from dlcloud.model.errors import InstanceError


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
