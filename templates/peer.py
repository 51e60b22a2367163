"""Copy a built environment from one instance of a cluster to another: peer.py VERB < JSON.

serve   {"name": ..., "system": ..., "key": ..., "host": ...}: offer the environment `name` to one client,
        from a process of its own that listens at `host`; prints {"port": int}
fetch   {"name": ..., "key": ..., "host": ..., "port": ...}: copy it from there; prints
        {"seconds": float, "bytes": int}

With "folder" the copy is of a folder below that one, in place of the cache of environments.

`key` are 64 hexadecimal digits that the launcher draws for one copy and sends to both over SSH; it is in no
process list and never on the network. A client proves that it has it before anything is sent, and every piece
of the archive carries HMAC-SHA256 of all that went before under this key, so nothing of another origin is
ever unpacked. The server yields processor and disk to the training beside it, and ends after one client, or
after a minute without one. Nothing is compressed: zstd -1 makes PyTorch's packages a third as large, for six
seconds of a core per GB that the training would lack (measured).
"""

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import pathlib
import platform
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import time

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "dlcloud" / "environments"
"""As in environment.py, which builds them."""
PIECE = 1 << 20
HEADER = struct.Struct(">I")
NONCE_BYTES = 16
CLIENT_S = 60.0
"""How long the server waits for its client."""
SILENCE_S = 20.0
"""After so long without a byte the other side is given up."""
PYTHON = "-python"
"""The suffix of the folder with an environment's own Python, where uv installed one."""


class TransferError(Exception):
    """The copy cannot be made, or is not what the peer sent."""


def serve(*, name: str, key: str, host: str, system: str = "", folder: str = "") -> None:
    """Offer an environment from a process of its own, and print its port."""
    choose_folder(folder)
    if not (CACHE / name / "complete").exists():
        raise TransferError("there is no environment " + name)
    if system and system != own_system():
        raise TransferError("its system is " + own_system() + ", not " + system)
    listener = socket.create_server((host, 0))
    if os.fork():
        print(json.dumps({"port": listener.getsockname()[1]}))
        return
    os.setsid()
    os.nice(19)
    with open(os.devnull, "r+b") as null:  # noqa: PTH123  one object for three descriptors
        for descriptor in range(3):
            os.dup2(null.fileno(), descriptor)
    with contextlib.suppress(OSError, TransferError):
        answer_client(listener, name, bytes.fromhex(key))
    os._exit(0)


def choose_folder(folder: str) -> None:
    """Copy within another folder than that of environments: that of data, maybe on its own disk."""
    global CACHE  # noqa: PLW0603  this program copies once
    CACHE = pathlib.Path(folder).expanduser() if folder else CACHE


def answer_client(listener: socket.socket, name: str, key: bytes) -> None:
    """Send the archive to the first client that has the key."""
    deadline = time.monotonic() + CLIENT_S
    while True:
        listener.settimeout(max(0.01, deadline - time.monotonic()))
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(SILENCE_S)
            nonce = secrets.token_bytes(NONCE_BYTES)
            connection.sendall(nonce)
            with contextlib.suppress(OSError, TransferError):
                if hmac.compare_digest(receive(connection, hashlib.sha256().digest_size), proof(key, nonce)):
                    listener.close()
                    send_archive(connection, name, key)
                    return


def send_archive(connection: socket.socket, name: str, key: bytes) -> None:
    """Send the archive in pieces: length, content, the code of all up to here; the last piece is empty."""
    folders = [name, *([name + PYTHON] if (CACHE / (name + PYTHON)).exists() else [])]
    command = ["tar", "-C", str(CACHE), "-cf", "-", "--", *folders]
    if shutil.which("ionice"):
        command = ["ionice", "-c", "3", *command]
    code = hmac.new(key, b"archive", hashlib.sha256)
    archiver = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        while True:
            piece = archiver.stdout.read(PIECE)
            if not piece and archiver.wait() != 0:
                raise TransferError("tar failed")  # without the last piece the client discards it all
            header = HEADER.pack(len(piece))
            code.update(header)
            code.update(piece)
            connection.sendall(header)
            connection.sendall(piece)
            connection.sendall(code.digest())
            if not piece:
                return
    finally:
        archiver.kill()
        archiver.wait()


def fetch(*, name: str, key: str, host: str, port: int, folder: str = "") -> None:
    """Copy an environment from a peer; whole or not at all."""
    choose_folder(folder)
    started = time.monotonic()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / (name + ".lock")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unfinished = CACHE / (name + ".fetch")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        try:
            with socket.create_connection((host, port), timeout=SILENCE_S) as connection:
                size = receive_archive(connection, bytes.fromhex(key), unfinished)
            adopt(unfinished, name)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    print(json.dumps({"seconds": round(time.monotonic() - started, 3), "bytes": size}))


def receive_archive(connection: socket.socket, key: bytes, folder: pathlib.Path) -> int:
    """Unpack the archive, each piece after its code is verified; return its size."""
    connection.sendall(proof(key, receive(connection, NONCE_BYTES)))
    code = hmac.new(key, b"archive", hashlib.sha256)
    size = 0
    unpacker = subprocess.Popen(
        ["tar", "-C", str(folder), "-xf", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        while True:
            header = receive(connection, HEADER.size)
            (length,) = HEADER.unpack(header)
            if length > PIECE:
                raise TransferError("a piece of the archive is too long")
            piece = receive(connection, length)
            code.update(header)
            code.update(piece)
            if not hmac.compare_digest(receive(connection, code.digest_size), code.digest()):
                raise TransferError("a piece of the archive is not the peer's")
            if not piece:
                break
            unpacker.stdin.write(piece)
            size += length
        unpacker.stdin.close()
        if unpacker.wait():
            raise TransferError("tar cannot unpack the archive")
    finally:
        unpacker.kill()
        unpacker.wait()
    return size


def adopt(unfinished: pathlib.Path, name: str) -> None:
    """Move what was unpacked to its place: the environment last, whose `complete` makes it one."""
    if not (unfinished / name / "complete").exists():
        raise TransferError("the archive is not complete")
    for folder in (name + PYTHON, name):
        if (unfinished / folder).exists():
            shutil.rmtree(CACHE / folder, ignore_errors=True)
            (unfinished / folder).rename(CACHE / folder)


def receive(connection: socket.socket, length: int) -> bytearray:
    """Return exactly so many bytes."""
    content = bytearray(length)
    view, received = memoryview(content), 0
    while received < length:
        count = connection.recv_into(view[received:])
        if not count:
            raise TransferError("the peer closed the connection")
        received += count
    return content


def proof(key: bytes, nonce: bytes) -> bytes:
    """Return what only a holder of the key can answer to a nonce."""
    return hmac.digest(key, b"client" + nonce, "sha256")


def own_system() -> str:
    """Return the C library, on which the packages of an environment depend."""
    return "-".join(platform.libc_ver())


def main() -> None:
    """Run the verb of the command line with the JSON of stdin."""
    try:
        {"serve": serve, "fetch": fetch}[sys.argv[1]](**json.load(sys.stdin))
    except (TransferError, OSError) as error:
        sys.exit(str(error))


main()
