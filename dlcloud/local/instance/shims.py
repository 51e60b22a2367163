"""Small programs in an instance's `bin/`, found before the host's programs of the same names."""

import json
import shlex
from pathlib import Path

from dlcloud.local.tree.instance_tree import InstanceTree

POWER_PATH = "/_dlcloud/power"
POWER_HEADER = "X-Dlcloud-Power"
FOUND_BY_PATH = (
    *("apt", "apt-get", "cloud-init", "halt", "init", "poweroff", "reboot", "shutdown", "sudo"),
    *("systemctl", "systemd-run", "telinit"),
)
"""Those that an instance with its own root file system has in /usr/bin or /usr/sbin too."""
_SFTP_SERVER = Path(__file__).with_name("sftp_server.py")
_EXECUTABLE = 0o755

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

# A fresh image has no lists of packages: nothing can be installed before an update. A job of the image may
# hold apt's locks at boot; DPkg::Lock::Timeout does not wait for that of the lists. Source: apt 2.6.1, tried.
_APT = """#!/bin/sh
state=@ROOT@/var/lib
lists="$state/apt-lists"
operation= skipped=
for word in "$@"; do
  if [ "$skipped" ]; then
    skipped=
    continue
  fi
  case "$word" in
    -o|-t|-c) skipped=1 ;;
    -*) ;;
    *) operation="${operation:-$word}" ;;
  esac
done
case "$operation" in
  ''|update|upgrade|dist-upgrade|full-upgrade|install|reinstall|remove|purge|autoremove|auto-remove) ;;
  clean|autoclean|auto-clean|distclean|check|download|source|build-dep|satisfy|changelog|list|search|show) ;;
  depends|rdepends|policy|indextargets|dselect-upgrade|showsrc|edit-sources|help|moo) ;;
  *) echo "E: Invalid operation $operation" >&2; exit 100 ;;
esac
for word in "$@"; do
  if [ "$word" = update ]; then
    if [ "$(cat "$state/apt-lock" 2>/dev/null || echo 0)" -gt "$(date +%s)" ]; then
      echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)" >&2
      exit 100
    fi
    : >"$lists"
  elif [ "$word" = install ] && [ ! -e "$lists" ]; then
    echo "E: Unable to locate package (no apt-get update yet)" >&2
    exit 100
  fi
done
echo "$(basename "$0"): on the local cloud packages are those of this machine; nothing was changed" >&2
exit 0
"""

# The units of the host are none of an instance's; the power of the instance is. A lock against a shutdown
# binds root too, as from systemd 257 on. Source: systemd 257, NEWS; systemctl(1), --check-inhibitors.
_SYSTEMCTL = """#!/bin/sh
order= forced=
for word in "$@"; do
  case "$word" in
    -i|-f|-ff|--force|--ignore-inhibitors|--check-inhibitors=no) forced=1 ;;
    -*) ;;
    poweroff|halt|reboot) order="$word" ;;
    *) break ;;
  esac
done
locks="$DLCLOUD_ROOT/run/systemd/inhibit"
inhibited() {
  for lock in "$locks"/*; do
    [ ! -f "$lock" ] || while read -r line; do
      case "$line" in WHAT=*shutdown*) return 0 ;; esac
    done <"$lock"
  done
  return 1
}
if [ "$order" ] && [ ! "$forced" ] && inhibited; then
  echo "Operation inhibited: $(cat "$locks"/* | tr '\\n' ' ')" >&2
  exit 1
fi
[ -n "$order" ] && exec "$(dirname "$0")/$order"
echo "systemctl: the local cloud has no units; nothing was changed" >&2
exit 0
"""

_INIT = """#!/bin/sh
case "$1" in
  0) exec "$(dirname "$0")/poweroff" ;;
  6) exec "$(dirname "$0")/reboot" ;;
esac
echo "init: the local cloud has no runlevels but 0 and 6; nothing was changed" >&2
exit 0
"""

# Transient units: a command under a free name, immediately or after a time; a minute is that of shutdown's
# timer.
_SYSTEMD_RUN = """#!/bin/sh
delay=0
while [ $# -gt 0 ]; do
  case "$1" in
    --unit=*) unit="${1#*=}" ;;
    --on-active=*min) delay="${1#*=}"; delay=$(python3 -I -S -c "print(${delay%min} * $DLCLOUD_MINUTE_S)") ;;
    --on-active=*s) delay="${1#*=}"; delay="${delay%s}" ;;
    --property=*) ;;
    -*) echo "systemd-run: the local cloud does not support $1" >&2; exit 1 ;;
    *) break ;;
  esac
  shift
done
if ! mkdir -p "$DLCLOUD_ROOT/run/units" || ! mkdir "$DLCLOUD_ROOT/run/units/$unit" 2>/dev/null; then
  echo "Failed to start transient unit: Unit $unit was already loaded" >&2
  exit 1
fi
if [ "$delay" = 0 ]; then
  "$@" >/dev/null 2>&1 </dev/null &
else
  (sleep "$delay" && exec "$@") >/dev/null 2>&1 </dev/null &
fi
"""

_CLOUD_INIT = """#!/bin/sh
# Of its state, an instance has what its image has not.
[ "$1" = clean ] && exit 0
if [ "$1" != status ]; then
  echo "cloud-init: the local cloud supports only: cloud-init status [--wait], cloud-init clean" >&2
  exit 2
fi
while [ "$2" = --wait ] && [ ! -e @ROOT@/lib/cloud-init-result ]; do sleep 0.05; done
if [ ! -e @ROOT@/lib/cloud-init-result ]; then echo "status: running"; exit 0; fi
status=$(cat @ROOT@/lib/cloud-init-result)
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


def write_shims(
    tree: InstanceTree, *, interpreter: str, address: tuple[str, int], secret: str, owner: int
) -> None:
    """Fill an instance's `bin/`, and its `lib/` with what these programs read.

    Args:
        tree: The instance's folder.
        interpreter: The Python behind `python3`.
        address: Host and port of the instance's metadata service, which takes power orders.
        secret: Proves that an order comes from this instance.
        owner: The user id of its programs, who alone may read that.
    """
    root = tree.root
    python = f'#!/bin/sh\nexec {shlex.quote(interpreter)} "$@"\n'
    programs = {"sudo": _SUDO, "apt-get": _APT, "apt": _APT, "cloud-init": _CLOUD_INIT}
    programs |= {"systemctl": _SYSTEMCTL, "systemd-run": _SYSTEMD_RUN, "init": _INIT, "telinit": _INIT}
    programs |= {"python3": python, "shutdown": _shell_shutdown(root, interpreter)}
    programs |= {name: _power_alias(root, words) for name, words in _ALIASES.items()}
    for name, text in programs.items():
        tree.write(f"bin/{name}", text.replace("@ROOT@", shlex.quote(str(root))), mode=_EXECUTABLE)
    tree.write("lib/power", secret, mode=0o400, owner=owner)
    values = {"SECRET": str(root / "lib/power"), "HOST": address[0], "PORT": address[1]}
    values |= {"PATH": POWER_PATH, "HEADER": POWER_HEADER}
    constants = "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
    tree.write("lib/shutdown.py", constants + _SHUTDOWN)
    tree.write("lib/sftp_server.py", _SFTP_SERVER.read_bytes())


_ALIASES = {"poweroff": "-P now", "halt": "-h now", "reboot": "-r now"}


def _shell_shutdown(root: Path, interpreter: str) -> str:
    """Return a wrapper around the shutdown program; -I -S keep packages out and the start quick."""
    program = shlex.quote(str(root / "lib/shutdown.py"))
    return f'#!/bin/sh\nexec {shlex.quote(interpreter)} -I -S {program} "$@"\n'


def _power_alias(root: Path, words: str) -> str:
    return f"#!/bin/sh\nexec {shlex.quote(str(root / 'bin/shutdown'))} {words}\n"
