"""environment.py and peer.py, run as on instances, with a package that lies on this disk."""

import base64
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from dlcloud.launch.image import compile_command
from dlcloud.resources.texts import template
from tests.needs import needs
from tests.programs import find as find_program

LIMIT_S = 600.0
KEY = "0123456789abcdef"


def write_wheel(folder):
    """Write the smallest wheel there can be."""
    files = {
        "tinysample.py": b"ANSWER = 42\n",
        "tinysample-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tinysample\nVersion: 1.0\n",
        "tinysample-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}")
    files["tinysample-1.0.dist-info/RECORD"] = "\n".join(
        [*lines, "tinysample-1.0.dist-info/RECORD,,"]
    ).encode()
    with zipfile.ZipFile(folder / "tinysample-1.0-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home whose environments are kept for the whole module, for each takes seconds to build."""
    made = tmp_path_factory.mktemp("home")
    for name in ("environment.py", "peer.py"):
        (made / name).write_text(template(name))
    return made


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    return write_wheel(tmp_path_factory.mktemp("wheels"))


def begin(home, wheels, requirements, key=KEY, **variables):
    environment = os.environ | {
        "XDG_CACHE_HOME": str(home / ".cache"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        **variables,
    }
    process = subprocess.Popen(
        [sys.executable, str(home / "environment.py"), key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )
    process.stdin.write(requirements)
    process.stdin.close()
    process.stdin = None
    return process


def answer(process):
    output, progress = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, progress
    return json.loads(output.splitlines()[-1])


def works(python):
    done = subprocess.run(
        [python, "-c", "import tinysample; print(tinysample.ANSWER)"], capture_output=True, check=True
    )
    return done.stdout == b"42\n"


def test_two_builders_at_once_build_one_environment(home, wheels):
    both = [begin(home, wheels, "tinysample==1.0\n") for _ in range(2)]
    first, second = (answer(process) for process in both)
    assert sorted([first["reused"], second["reused"]]) == [False, True]
    assert first["python"] == second["python"]
    assert Path(first["python"]).is_relative_to(home / ".cache/dlcloud/environments")
    assert works(first["python"])
    again = answer(begin(home, wheels, "tinysample==1.0\n"))
    assert again["reused"]
    assert again["python"] == first["python"]
    assert again["seconds"] < first["seconds"] + second["seconds"]


def test_modules_are_compiled_when_they_are_imported_or_for_an_image(home, wheels):
    def compiled():
        return [path for path in folder.rglob("*.pyc") if path.name.startswith("tinysample")]

    python = answer(begin(home, wheels, "tinysample==1.0\n", "compiled"))["python"]
    folder = Path(python).parents[1]
    assert not compiled()
    subprocess.run(["sh", "-c", compile_command(python)], check=True)
    assert compiled()


def test_homes_that_share_a_cache_by_links_share_its_environments(home, wheels, tmp_path):
    first = answer(begin(home, wheels, "tinysample==1.0\n"))
    (tmp_path / "cache").symlink_to(home / ".cache")
    again = answer(begin(home, wheels, "tinysample==1.0\n", XDG_CACHE_HOME=str(tmp_path / "cache")))
    assert (again["reused"], again["python"]) == (True, first["python"])


@pytest.mark.parametrize(("own", "kept"), [({}, True), ({"PIP_INDEX_URL": "http://127.0.0.1:9/"}, False)])
def test_another_index_is_left_out_where_pip_has_its_own(home, wheels, own, kept):
    extra = "--extra-index-url http://127.0.0.1:9/whl/cpu"
    built = answer(begin(home, wheels, f"{extra}\ntinysample==1.0\n", f"index-{kept}", **own))
    written = Path(built["python"]).parents[1] / "requirements.txt"
    assert written.read_text() == (f"{extra}\n" if kept else "") + "tinysample==1.0\n"


def test_a_torn_environment_is_built_anew(home, wheels):
    folder = Path(answer(begin(home, wheels, "tinysample==1.0\n"))["python"]).parents[1]
    (folder / "complete").unlink()
    for left in folder.rglob("tinysample*"):
        if left.is_file():
            left.unlink()
    built = answer(begin(home, wheels, "tinysample==1.0\n"))
    assert not built["reused"]
    assert works(built["python"])


@pytest.mark.long
def test_an_environment_that_pip_refuses_is_not_complete(home, wheels):
    process = begin(home, wheels, "tinysample==9.9\n", "refused")
    output, progress = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert output == ""
    assert "pip failed" in progress
    assert "tinysample==9.9" in progress
    (folder,) = (home / ".cache/dlcloud/environments").glob("refused*/")
    assert not (folder / "complete").exists()


@pytest.fixture
def failing_uv(tmp_path):
    """A folder with a uv that writes its arguments down and fails."""
    program = tmp_path / "bin" / "uv"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\nexit 1\n')
    program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("own", "asked"),
    [
        pytest.param({}, True, id="fails"),
        pytest.param({"PIP_ONLY_BINARY": ":all:"}, False, id="lacks a setting", marks=pytest.mark.long),
    ],
)
def test_pip_installs_where_uv_fails_or_lacks_a_setting(home, wheels, failing_uv, own, asked):
    path = f"{failing_uv / 'bin'}{os.pathsep}{os.environ['PATH']}"
    built = answer(begin(home, wheels, "tinysample==1.0\n", f"uv-{asked}", PATH=path, **own))
    assert works(built["python"])
    arguments = (failing_uv / "asked").read_text() if asked else ""
    assert (failing_uv / "asked").exists() is asked
    assert (f"--find-links {wheels}" in arguments) is asked
    assert ("--no-index" in arguments) is asked


@needs("uv")
def test_an_environment_of_uv_has_pip_too(home, wheels, tmp_path):
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\nexec {find_program("uv")} "$@"\n')
    uv.chmod(0o755)
    path = f"{uv.parent}{os.pathsep}{os.environ['PATH']}"
    python = answer(begin(home, wheels, "tinysample==1.0\n", "uv-own", PATH=path))["python"]
    assert "pip install" in (tmp_path / "asked").read_text()
    assert works(python)
    subprocess.run([python, "-m", "pip", "show", "tinysample"], capture_output=True, check=True)


def find(home, folder, key=KEY):
    """Return what environment.py knows of an environment in the home of an instance."""
    command = [sys.executable, str(home / "environment.py"), "--find", key]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / ".cache")}
    return json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)


def peer(home, folder, verb, **order):
    """Run peer.py on an instance; return its answer, or the end of its error."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(home / "peer.py"), verb],
        input=json.dumps(order),
        env=os.environ | {"XDG_CACHE_HOME": str(folder / ".cache")},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.splitlines()[-1]


@pytest.fixture
def source(home, wheels):
    """What an instance with the environment offers."""
    answer(begin(home, wheels, "tinysample==1.0\n"))
    state = find(home, home)
    assert state.pop("complete")
    return {**state, "key": "ab" * 32, "host": "127.0.0.1"}


def fetch(home, folder, source, port, **changes):
    order = {name: source[name] for name in ("name", "key", "host")}
    return peer(home, folder, "fetch", **(order | {"port": port} | changes))


@needs("tar")
def test_an_environment_is_copied_from_a_peer_and_works(home, source, tmp_path):
    assert not find(home, tmp_path)["complete"]
    compiled = home / ".cache/dlcloud/environments" / source["name"] / "bin/__pycache__"
    compiled.mkdir(exist_ok=True)  # of a script that is a module, as packages have them
    offer = peer(home, home, "serve", **source)
    copied = fetch(home, tmp_path, source, offer["port"])
    assert copied["bytes"] > 10_000
    assert find(home, tmp_path)["complete"]
    (tmp_path / "environment.py").write_text(template("environment.py"))
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    found = answer(begin(tmp_path, nothing, "tinysample==1.0\n"))
    assert found["reused"]
    assert Path(found["python"]).is_relative_to(tmp_path)
    assert works(found["python"])
    pip = Path(found["python"]).with_name("pip")
    shown = subprocess.run([pip, "show", "-f", "tinysample"], capture_output=True, text=True, check=True)
    assert str(tmp_path) in shown.stdout
    assert str(home) not in shown.stdout


@needs("tar")
def test_a_peer_serves_one_client_and_only_with_the_key(home, source, tmp_path):
    port = peer(home, home, "serve", **source)["port"]
    assert "closed the connection" in fetch(home, tmp_path, source, port, key="cd" * 32)
    assert not find(home, tmp_path)["complete"]
    assert fetch(home, tmp_path, source, port)["bytes"]
    assert "refused" in fetch(home, tmp_path, source, port)


def test_a_peer_without_the_environment_or_of_another_system_refuses(home, source, tmp_path):
    assert "there is no environment other" in peer(home, home, "serve", **(source | {"name": "other"}))
    assert "its system is" in peer(home, home, "serve", **(source | {"system": "musl-1.2"}))
    assert "cannot assign" in peer(home, home, "serve", **(source | {"host": "203.0.113.1"})).lower()
    assert not find(home, tmp_path)["complete"]


def relay(port, change):
    """Return the port of a relay to a peer that changes what it sends."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run():
        client, _ = listener.accept()
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            client.sendall(server.recv(16, socket.MSG_WAITALL))
            server.sendall(client.recv(32, socket.MSG_WAITALL))
            content = b"".join(iter(lambda: server.recv(1 << 16), b""))
            with contextlib.suppress(OSError):
                client.sendall(change(content))
        listener.close()

    threading.Thread(target=run, daemon=True).start()
    return listener.getsockname()[1]


@needs("tar")
@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-36],
        lambda content: content[:9999] + bytes([content[9999] ^ 1]) + content[10000:],
        # The first piece alone, then an end with the code that the piece had.
        lambda content: content[: (1 << 20) + 36] + bytes(4) + content[(1 << 20) + 4 : (1 << 20) + 36],
    ],
    ids=["torn", "without its end", "changed", "cut short"],
)
def test_an_archive_that_is_not_the_peers_is_discarded(home, source, tmp_path, change):
    port = peer(home, home, "serve", **source)["port"]
    error = fetch(home, tmp_path, source, relay(port, change))
    assert "peer" in error
    assert not find(home, tmp_path)["complete"]
    assert [path.suffix for path in (tmp_path / ".cache/dlcloud/environments").iterdir()] == [".lock"]
