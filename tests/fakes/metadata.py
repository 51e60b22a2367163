"""An instance metadata service, version 2, that answers as a test asks it to."""

import contextlib
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NOTICE = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Service(ThreadingHTTPServer):
    """Answers by token; `faults` are statuses that the next document requests get.

    `broken` has the statuses that paths always get, `late_s` the seconds that paths wait;
    `trickles` are paths that send one byte every half second.
    """

    daemon_threads = True

    def __init__(self, host="127.0.0.1"):
        super().__init__((host, 0), Handler)
        self.documents, self.tokens, self.issued, self.faults = {}, set(), 0, []
        self.token_status, self.token_text = 200, "TOKEN"
        self.broken, self.late_s, self.trickles = {}, {}, set()

    @property
    def url(self):
        return f"http://{self.server_address[0]}:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_PUT(self):
        self.server.issued += 1
        token = f"token-{self.server.issued}"
        self.server.tokens.add(token)
        self.answer(
            self.server.token_status, self.server.token_text.replace("TOKEN", token).encode("latin-1")
        )

    def do_GET(self):
        time.sleep(self.server.late_s.get(self.path, 0))
        if self.headers.get("X-aws-ec2-metadata-token") not in self.server.tokens:
            self.answer(401, "")
        elif self.server.faults:
            self.answer(self.server.faults.pop(0), "")
        elif self.path in self.server.broken:
            self.answer(self.server.broken[self.path], "")
        elif self.path in self.server.documents:
            self.answer(200, self.server.documents[self.path])
        else:
            self.answer(404, "")

    def answer(self, status, text):
        data = text if isinstance(text, bytes) else text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # a client that waited too long
            for byte in data if self.path in self.server.trickles else b"":
                self.wfile.write(bytes([byte]))
                time.sleep(0.5)
            if self.path not in self.server.trickles:
                self.wfile.write(data)

    def log_message(self, *_):
        pass
