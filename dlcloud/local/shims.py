"""Small programs in an instance's `bin/`, found before the host's programs of the same names."""

import json
import shlex
from pathlib import Path

POWER_PATH = "/_dlcloud/power"
POWER_HEADER = "X-Dlcloud-Power"
_EXECUTABLE = 0o755
_SECRET = 0o600

# sudo runs its command as the same user; its options and assignments are parsed and dropped.
_SUDO = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in
    --) shift; break ;;
    -[ughpCTrtUDR]) shift; [ $# -gt 0 ] && shift ;;
    -*) shift ;;
    *) break ;;
  esac
done
[ $# -eq 0 ] && exec "$SHELL"
exec env "$@"
"""

# A fresh image has no lists of packages: nothing can be installed before an update.
_APT = """#!/bin/sh
lists="$(dirname "$0")/../var/lib/apt-lists"
for word in "$@"; do
  if [ "$word" = update ]; then
    : >"$lists"
  elif [ "$word" = install ] && [ ! -e "$lists" ]; then
    echo "E: Unable to locate package (no apt-get update yet)" >&2
    exit 100
  fi
done
echo "$(basename "$0"): on the local cloud packages are those of this machine; nothing was changed" >&2
exit 0
"""

# The units of the host are none of an instance's.
_SYSTEMCTL = """#!/bin/sh
echo "systemctl: the local cloud has no units; nothing was changed" >&2
exit 0
"""

_CLOUD_INIT = """#!/bin/sh
if [ "$1" != status ]; then
  echo "cloud-init: the local cloud supports only: cloud-init status [--wait]" >&2
  exit 2
fi
while [ "$2" = --wait ] && [ ! -e "$DLCLOUD_ROOT/run/cloud-init/result" ]; do sleep 0.05; done
if [ ! -e "$DLCLOUD_ROOT/run/cloud-init/result" ]; then echo "status: running"; exit 0; fi
status=$(cat "$DLCLOUD_ROOT/run/cloud-init/result")
echo "status: $status"
[ "$status" = done ]
"""

# An HTTP library would take ten times as long to load as all the rest: two of these run at every boot.
_SHUTDOWN = """import os, socket, sys, time

MINUTE_S = float(os.environ.get("DLCLOUD_MINUTE_S", "60"))

def delay(text):
    if text in ("now", "0", "+0"):
        return 0.0
    if ":" in text:
        hours, minutes = (int(part) for part in text.split(":"))
        if not (0 <= hours < 24 and 0 <= minutes < 60):
            raise ValueError(text)
        now = time.localtime()
        passed = now.tm_hour * 3600 + now.tm_min * 60 + now.tm_sec
        return float((hours * 3600 + minutes * 60 - passed) % 86400)
    return MINUTE_S * float(text.removeprefix("+"))

def parse_order(arguments):
    if "-c" in arguments:
        return "cancel"
    if any(option in arguments for option in ("-r", "--reboot")):
        return "reboot"
    times = [word for word in arguments if not word.startswith("-")]
    return str(delay(times[0]) if times else MINUTE_S)

try:
    order = parse_order(sys.argv[1:])
except ValueError:
    sys.exit("shutdown: failed to parse the time: " + " ".join(sys.argv[1:]))
with open(SECRET) as file:
    secret = file.read()
with socket.create_connection((HOST, PORT), timeout=30) as connection:
    head = f"PUT {PATH} HTTP/1.1\\r\\n{HEADER}: {secret}\\r\\nContent-Length: {len(order)}\\r\\n\\r\\n"
    connection.sendall((head + order).encode())
    reply = connection.makefile("rb").readline()
if reply.split()[1:2] != [b"200"]:
    sys.exit("shutdown: the local cloud answered " + reply.decode().strip())
"""


def write_shims(root: Path, *, interpreter: str, address: tuple[str, int], secret: str) -> None:
    """Fill an instance's `bin/`.

    Args:
        root: The instance's root folder.
        interpreter: The Python behind `python3`.
        address: Host and port of the instance's metadata service, which takes power orders.
        secret: Proves that an order comes from this instance.
    """
    folder = root / "bin"
    python = f'#!/bin/sh\nexec {shlex.quote(interpreter)} "$@"\n'
    programs = {"sudo": _SUDO, "apt-get": _APT, "apt": _APT, "cloud-init": _CLOUD_INIT}
    programs |= {"systemctl": _SYSTEMCTL, "python3": python, "shutdown": _shell_shutdown(root, interpreter)}
    programs |= {name: _power_alias(root, words) for name, words in _ALIASES.items()}
    for name, text in programs.items():
        _write(folder / name, text, _EXECUTABLE)
    power = root / "var/lib/dlcloud/power"
    _write(power, secret, _SECRET)
    values = {"SECRET": str(power), "HOST": address[0], "PORT": address[1]}
    values |= {"PATH": POWER_PATH, "HEADER": POWER_HEADER}
    constants = "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
    _write(root / "var/lib/dlcloud/shutdown.py", constants + _SHUTDOWN, _SECRET)


_ALIASES = {"poweroff": "-P now", "halt": "-h now", "reboot": "-r now"}


def _shell_shutdown(root: Path, interpreter: str) -> str:
    """Return a wrapper around the shutdown program; -I -S keep packages out and the start quick."""
    program = shlex.quote(str(root / "var/lib/dlcloud/shutdown.py"))
    return f'#!/bin/sh\nexec {shlex.quote(interpreter)} -I -S {program} "$@"\n'


def _power_alias(root: Path, words: str) -> str:
    return f"#!/bin/sh\nexec {shlex.quote(str(root / 'bin/shutdown'))} {words}\n"


def _write(path: Path, text: str, mode: int) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
