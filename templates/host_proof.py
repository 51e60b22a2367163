"""Prove that this instance's SSH host key is its own: write HMAC-SHA256(secret, instance id NUL host key).

Only this instance and the launcher know the secret, which was made for one launch. The launcher compares the
proof with the key it met before it sends anything. DLCLOUD_ROOT is set on the local EC2 only.
"""

import hashlib
import hmac
import http.client
import os
import pathlib
import time

SECRET = "@SECRET@"  # noqa: S105  replaced when this is rendered
ROOT = os.environ.get("DLCLOUD_ROOT", "")
METADATA = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
HOST_KEY = pathlib.Path(ROOT + "/etc/ssh/ssh_host_ed25519_key.pub")
PROOF = pathlib.Path(ROOT + "/var/lib/dlcloud/host-proof")


def metadata(method: str, path: str, headers: "dict[str, str]") -> str:
    """Ask the instance metadata service."""
    connection = http.client.HTTPConnection(METADATA.partition("//")[2], timeout=5)
    connection.request(method, path, headers=headers)
    return connection.getresponse().read().decode()


def main() -> None:
    """Wait for the host key, then write the proof, whole."""
    while not HOST_KEY.exists():
        time.sleep(0.1)
    token = metadata("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    instance_id = metadata("GET", "/latest/meta-data/instance-id", {"X-aws-ec2-metadata-token": token})
    key = HOST_KEY.read_text().split()[1]
    proof = hmac.new(bytes.fromhex(SECRET), f"{instance_id}\0{key}".encode(), hashlib.sha256).hexdigest()
    PROOF.parent.chmod(0o755)
    unfinished = PROOF.with_suffix(".new")
    unfinished.write_text(proof + "\n")
    unfinished.chmod(0o644)
    unfinished.rename(PROOF)


main()
