"""The templates as files that run, each in a folder that stands for an instance."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

INSTANCE_ID = "i-0123456789abcdef0"
TOKEN = "a-session-token"


@pytest.fixture
def metadata():
    """An instance metadata service that demands version 2; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self):
            asked = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
            self._answer(200 if asked else 400, TOKEN if asked else "")

        def do_GET(self):
            known = self.path == "/latest/meta-data/instance-id"
            allowed = self.headers["X-aws-ec2-metadata-token"] == TOKEN
            self._answer(401 if not allowed else 200 if known else 404, INSTANCE_ID if known else "")

        def _answer(self, status, text):
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
