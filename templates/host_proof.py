"""Prove that this instance's SSH host key is its own: write HMAC-SHA256(secret, instance id NUL host key).

Only this instance and the launcher know the secret, which is drawn for one launch. The launcher compares the
proof with the host key of its connection before it sends anything. DLCLOUD_ROOT is set on the local EC2 only.
"""

import hashlib
import hmac
import os
import socket
import subprocess
import time

SECRET = "@SECRET@"  # noqa: S105  replaced when this is rendered
ROOT = os.environ.get("DLCLOUD_ROOT", "")
METADATA = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
HOST_KEY = ROOT + "/etc/ssh/ssh_host_ed25519_key.pub"
PROOF = ROOT + "/var/lib/dlcloud/host-proof"
ATTEMPTS = 60
TIMER = "/run/systemd/transient/dlcloud-life.timer"
PER_BOOT = "/var/lib/cloud/scripts/per-boot/dlcloud"


def metadata(method: str, path: str, name: str, value: str) -> str:
    """Query the instance metadata service. By hand: an HTTP library loads longer than this program runs."""
    host, _, port = METADATA.partition("//")[2].partition(":")
    with socket.create_connection((host, int(port or 80)), timeout=5) as connection:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"{name}: {value}", "Connection: close"]
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        with connection.makefile("rb") as reply:
            status = reply.readline().split()
            headers = {}
            while line := reply.readline().strip():
                key, _, text = line.decode().partition(":")
                headers[key.lower()] = text.strip()
            body = reply.read(int(headers.get("content-length", 0)))
    if status[1] != b"200":
        raise OSError(f"the metadata service refused {path}: {status[1].decode()}")
    return body.decode()


def own_id() -> str:
    """Return the instance's id; the metadata service may be late or busy at boot."""
    left = ATTEMPTS
    while True:
        try:
            token = metadata("PUT", "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds", "60")
            return metadata("GET", "/latest/meta-data/instance-id", "X-aws-ec2-metadata-token", token)
        except (OSError, ValueError, IndexError):
            left -= 1
            if not left:
                raise
        time.sleep(1)


def require_end() -> None:
    """Start the timers of the instance's end where the image's cloud-init ran no per-boot scripts.

    An instance without them proves nothing, so that the launcher ends it.
    """
    if not os.path.exists(TIMER):
        subprocess.run([PER_BOOT], check=True)
    if not os.path.exists(TIMER):
        raise OSError("there is no timer that ends this instance")


def main() -> None:
    """Wait for the host key, then write the proof atomically."""
    if not ROOT:
        require_end()
    while not os.path.exists(HOST_KEY):
        time.sleep(0.1)
    instance_id = own_id()
    with open(HOST_KEY, encoding="ascii", errors="replace") as public:
        key = public.read().split()[1]
    proof = hmac.new(bytes.fromhex(SECRET), f"{instance_id}\0{key}".encode(), hashlib.sha256).hexdigest()
    os.chmod(os.path.dirname(PROOF), 0o755)
    unfinished = PROOF + ".new"
    with open(unfinished, "w", encoding="ascii") as stream:
        stream.write(proof + "\n")
    os.chmod(unfinished, 0o644)
    os.rename(unfinished, PROOF)


main()
