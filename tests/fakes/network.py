"""Machines with addresses of their own on this one, and cuts between them; only root may make them."""

import contextlib
import os
import subprocess

import pytest

from tests.programs import missing


class Network:
    """A bridge, at `host`, and a network namespace for each name; Linux only.

    Args:
        names: Of the machines, short ones.

    A process has one at a time; those of other processes have names and addresses of their own.
    """

    def __init__(self, names):
        high, low = divmod(os.getpid() % 0x4000, 0x100)
        prefix = f"10.{64 + high}.{low}"
        self.addresses = {name: f"{prefix}.{number}" for number, name in enumerate(names, 2)}
        self.host, self.tag = f"{prefix}.1", f"dl{high:02x}{low:02x}"

    def __enter__(self):
        if reason := missing("ip"):
            pytest.skip(reason)
        self._ip(f"link add {self.tag}-bridge type bridge")
        self._ip(f"addr add {self.host}/24 dev {self.tag}-bridge")
        self._ip(f"link set {self.tag}-bridge up")
        for name, address in self.addresses.items():
            self._ip(f"netns add {self.tag}-{name}")
            self._ip(f"link add {self.tag}-{name} type veth peer name eth0 netns {self.tag}-{name}")
            self._ip(f"link set {self.tag}-{name} master {self.tag}-bridge up")
            self._inside(name, f"addr add {address}/24 dev eth0")
            self._inside(name, "link set eth0 up")
            self._inside(name, "link set lo up")
        return self

    def __exit__(self, *_):
        for name in self.addresses:
            with contextlib.suppress(subprocess.CalledProcessError):
                self._ip(f"netns del {self.tag}-{name}")
                self._ip(f"link del {self.tag}-{name}")  # it may be gone with the machine
        self._ip(f"link del {self.tag}-bridge")

    def command(self, name, command):
        """Return a command that runs on a machine."""
        return ["ip", "netns", "exec", f"{self.tag}-{name}", *command]

    def cut(self, one, other):
        """Let nothing pass between two machines, and say nothing about it."""
        self._inside(one, f"route add blackhole {self.addresses[other]}/32")
        self._inside(other, f"route add blackhole {self.addresses[one]}/32")

    def mend(self, one, other):
        self._inside(one, f"route del blackhole {self.addresses[other]}/32")
        self._inside(other, f"route del blackhole {self.addresses[one]}/32")

    def unplug(self, name):
        """Let a machine be gone without a word."""
        self._ip(f"link set {self.tag}-{name} down")

    def plug(self, name):
        self._ip(f"link set {self.tag}-{name} up")

    def _inside(self, name, words):
        self._ip(f"-n {self.tag}-{name} {words}")

    @staticmethod
    def _ip(words):
        subprocess.run(["ip", *words.split()], check=True, capture_output=True)
