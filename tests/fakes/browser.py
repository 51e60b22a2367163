"""A real Chromium without a window, spoken to over a pipe: nothing listens, only the file is loaded."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from itertools import count

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
    "--window-size=1100,900",
)


def program():
    """Return the path of a Chromium; None where there is none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """One page of a Chromium of its own, with its console and its requests."""

    def __init__(self):
        self._numbers = count(1)
        # Processes of Chromium may write into it a moment longer than the first one lives.
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        ours, theirs = os.pipe(), os.pipe()
        # Chromium reads from descriptor 3 and writes to 4; high ones can be moved there in any order.
        given = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 20) for descriptor in (ours[0], theirs[1])]
        script = f'exec "$0" "$@" 3<&{given[0]} 4>&{given[1]}'
        command = [
            "bash",
            "-c",
            script,
            program(),
            *OPTIONS,
            f"--user-data-dir={self._folder.name}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            command, pass_fds=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for descriptor in (ours[0], theirs[1], *given):
            os.close(descriptor)
        self._to, self._from = os.fdopen(ours[1], "wb"), os.fdopen(theirs[0], "rb")
        self._pending = b""
        self.events = []
        target = next(
            target for target in self.call("Target.getTargets")["targetInfos"] if target["type"] == "page"
        )
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    _session = None

    def close(self):
        """End it, with all that it kept."""
        self._process.terminate()
        self._process.wait(timeout=600)
        self._to.close()
        self._from.close()
        self._folder.cleanup()

    def call(self, method, **parameters):
        """Carry out a command of the DevTools protocol and return its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def open(self, path):
        """Open a page and wait until its script says that it is done."""
        self.call("Page.navigate", url=path.absolute().as_uri())
        # Parsed first: the old page must not be asked.
        self.evaluate(
            "new Promise(r => document.readyState === 'complete' ? r() : addEventListener('load', r))"
        )
        ready = "document.documentElement.dataset.ready"
        waits = f"new Promise(r => {{ const w = () => {ready} ? r() : setTimeout(w, 20); w(); }})"
        self.evaluate(waits)

    def evaluate(self, expression):
        """Return the value of an expression, awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def resize(self, width, height):
        """Show the page in a window of that size, in pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def wait_for(self, condition, *, seconds=60):
        """Wait until an expression is true; False if it is not within that time."""
        look = f"({condition}) ? r(true) : Date.now() > end ? r(false) : setTimeout(look, 50)"
        return self.evaluate(
            f"new Promise(r => {{ const end = Date.now() + {seconds * 1000};"
            f" const look = () => {look}; look(); }})"
        )

    def press(self, key):
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def media(self, *, scheme="light", kind="screen"):
        """Show the page as for a medium."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def screenshot(self, path):
        """Write what the whole page looks like."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def complaints(self):
        """Return errors and warnings of the console, and uncaught exceptions."""
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    found.append(parameters["exceptionDetails"])
                case "Runtime.consoleAPICalled" if parameters["type"] in {"error", "warning", "assert"}:
                    found.append(parameters["args"])
                case "Log.entryAdded" if parameters["entry"]["level"] in {"error", "warning"}:
                    found.append(parameters["entry"])
        return found

    def requests(self):
        """Return the addresses that were asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def _read(self):
        while b"\0" not in self._pending:
            piece = os.read(self._from.fileno(), 1 << 16)
            assert piece, "Chromium ended"
            self._pending += piece
        message, _, self._pending = self._pending.partition(b"\0")
        return json.loads(message)


KEYS = {"Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "End": 35, "Home": 36}
