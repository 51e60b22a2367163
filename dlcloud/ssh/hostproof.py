r"""The one-time proof that a host key belongs to the instance that was launched, and to no one in between.

User data brings a secret to the instance. At first boot the instance writes
HMAC-SHA256(secret, instance id NUL base64 of its host key). Who stands in between has another host key
and does not know the secret, and a proof heard elsewhere is bound to the key and instance it was made for.

The instance computes it with
`printf '%s\0%s' "$IID" "$KEY" | openssl dgst -sha256 -mac HMAC -macopt hexkey:$SECRET`.
"""

import base64
import hashlib
import hmac
import secrets

SECRET_BYTES = 32

# DLCLOUD_ROOT is unset on EC2; on the local EC2 it is the folder that stands for the instance's root.
PROOF_COMMAND = 'cat "$DLCLOUD_ROOT/var/lib/dlcloud/host-proof"'


def new_secret() -> str:
    """Draw a secret of 32 bytes, as hexadecimal digits."""
    return secrets.token_hex(SECRET_BYTES)


def host_proof(secret_hex: str, instance_id: str, host_key_base64: str) -> str:
    """Compute the proof, as hexadecimal digits, that the instance with this host key must show."""
    message = f"{instance_id}\0{host_key_base64}".encode()
    return hmac.new(bytes.fromhex(secret_hex), message, hashlib.sha256).hexdigest()


def fingerprint(host_key_base64: str) -> str:
    """Return a host key's SHA256 fingerprint as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(base64.b64decode(host_key_base64)).digest()
    return "SHA256:" + base64.b64encode(digest).decode("ascii").rstrip("=")


def proves(shown: bytes, secret_hex: str, instance_id: str, host_key_base64: str) -> bool:
    """Tell, in constant time, whether what the instance printed is its proof.

    Args:
        shown: Output of `PROOF_COMMAND`: the digits alone, or after openssl's `HMAC-SHA2-256(stdin)= `.
        secret_hex: The secret that user data brought to this instance.
        instance_id: The instance that was launched.
        host_key_base64: The host key of the handshake in progress.
    """
    words = shown.split()
    expected = host_proof(secret_hex, instance_id, host_key_base64)
    return bool(words) and hmac.compare_digest(words[-1].lower(), expected.encode("ascii"))
