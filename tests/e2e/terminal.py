"""Run the command as a user does: a process of its own, in a fresh home, on that home's local EC2."""

import functools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3

from dlcloud.local.site import LocalEndpoint, LocalSite
from tests.fakes.control import HarnessControl, control_of
from tests.prefork import Commands

DLCLOUD = Path(sys.executable).with_name("dlcloud")
TIMEOUT_S = 600
READ_AT_START = re.compile("PYTHON|LC_|LANG")
"""Variables that Python reads as it starts: a command that has them is started anew."""

QUICK = """
name: quick
cloud: local
instances:
  types: [c5.xlarge]
  count: {count}
workload:
  command: '{command}'
  throughput: 'images/sec: ([0-9.]+)'
  unit: images
  repeats: 1
"""


@dataclass
class User:
    """Someone at a terminal with a home of their own."""

    home: Path
    command: tuple[str, ...] = (str(DLCLOUD),)
    variables: dict[str, str] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S

    def run(
        self, *arguments: str, expect: int | None = 0, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run dlcloud to its end and check its exit code."""
        command = [*self.command, *arguments]
        if self.command == (str(DLCLOUD),) and not any(map(READ_AT_START.match, self.variables)):
            done = Commands.of_this_process().run(
                command, environment=self.environment, folder=self.home, text=text, timeout_s=self.timeout_s
            )
        else:
            done = subprocess.run(
                command,
                env=self.environment,
                cwd=self.home,
                capture_output=True,
                text=True,
                input=text,
                timeout=self.timeout_s,
                check=False,
            )
        failure = f"dlcloud {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert expect is None or done.returncode == expect, failure
        assert "Traceback" not in done.stdout + done.stderr, failure
        return done

    def json(self, *arguments: str, expect: int = 0) -> dict:
        """Run dlcloud with --output json and return its one document."""
        return json.loads(self.run(*arguments, "--output", "json", expect=expect).stdout)

    def call(self, *words: str | Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
        """Run another program as this user, without dlcloud's variables, and check its exit code."""
        environment = self.environment
        del environment["DLCLOUD_HOME"]
        done = subprocess.run(
            [str(word) for word in words],
            env=environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=self.timeout_s,
            check=False,
        )
        assert done.returncode == expect, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start dlcloud and leave it running; Ctrl-C reaches it as from a terminal."""
        return subprocess.Popen(
            [*self.command, *arguments],
            env=self.environment,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def recipe(
        self, command: str = 'echo "images/sec: 5"', *, count: int = 1, name: str = "quick.yaml"
    ) -> str:
        """Write a recipe that runs a command; return its path."""
        path = self.home / name
        path.write_text(QUICK.format(command=command.replace("'", "''"), count=count))
        return str(path)

    def alive(self) -> list[str]:
        """Return the ids of instances that exist, as the EC2 API lists them."""
        found = self.ec2.describe_instances()
        return [
            instance["InstanceId"]
            for reservation in found["Reservations"]
            for instance in reservation["Instances"]
            if instance["State"]["Name"] not in {"terminated", "shutting-down"}
        ]

    def store(self, statement: str, *values: object) -> list[tuple]:
        """Execute a statement of SQL on this home's store; no rows before it has its tables."""
        path = self.home / ".dlcloud" / "store.sqlite"
        if not path.exists():
            return []
        try:
            with closing(sqlite3.connect(path)) as connection, connection:
                return connection.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise

    def aws(self, *arguments: str) -> dict:
        """Ask the local EC2 with the AWS command line."""
        program = "import sys; from awscli.clidriver import main; sys.exit(main())"
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=self.environment | self._endpoint().environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        return json.loads(done.stdout or "{}")

    @property
    def ec2(self) -> Any:
        """Return a client of the local EC2, as its owner."""
        return self.client("ec2")

    def client(self, service: str, region: str = "us-east-1") -> Any:
        """Return a client of any service of the local EC2, as its owner."""
        endpoint = self._endpoint()
        return _client(service, region, endpoint.url, *endpoint.owner_key())

    @property
    def control(self) -> HarnessControl:
        """Return the control of the local EC2, which makes AWS's decisions."""
        return control_of(self._endpoint())

    def _endpoint(self) -> LocalEndpoint:
        endpoint = LocalSite(self.home / ".dlcloud" / "local").find()
        assert endpoint is not None, "the local EC2 is not running"
        return endpoint

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment: this home, no credentials, and the width of a small terminal."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "DLCLOUD_"))
        }
        own = {"HOME": str(self.home), "DLCLOUD_HOME": str(self.home / ".dlcloud"), "COLUMNS": "80"}
        return kept | own | self.variables


@functools.cache
def _client(service: str, region: str, url: str, key_id: str, secret: str) -> Any:
    """Return a client in this process: tests ask often, and the AWS command line takes a second to start."""
    return boto3.client(
        service,
        endpoint_url=url,
        region_name=region,
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
    )


def wait_until(true, *, seconds: float = TIMEOUT_S) -> None:
    """Poll until a condition holds; what takes long to ask leaves the processor to what is waited for."""
    deadline = time.monotonic() + seconds
    began = time.monotonic()
    while not true():
        now = time.monotonic()
        assert now < deadline, "it never came true"
        time.sleep(min(1.0, max(0.05, 2 * (now - began))))
        began = time.monotonic()


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """Return the progress of a command up to the first line that has these words."""
    printed = ""
    for line in process.stderr or ():
        printed += line
        if words in line:
            return printed
    raise AssertionError(f"{words!r} was never printed\n{printed}")


def await_handlers(process: subprocess.Popen[Any]) -> None:
    """Wait until the command has its handlers: before them, Python itself starts."""
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.0005)
