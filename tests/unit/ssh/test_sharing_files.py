"""One instance copies files from another, with the programs that run on real ones."""

import pytest

from dlcloud.launch.setup import FOLDER, EnvironmentPeer
from dlcloud.launch.user_files import FEWEST, LEAST_BYTES, PLACE, Sharing
from dlcloud.resources.texts import template
from dlcloud.ssh.listing import list_files
from tests.needs import needs

pytestmark = needs("tar")


@pytest.fixture
def connections(make_host, make_dialer):
    """Connections to two instances, by id, and the folders of their homes."""
    hosts = [make_host(name).start() for name in ("i-0abc", "i-0def")]
    dialer = make_dialer(*hosts)
    for host in hosts:
        host.prove()
    opened = {host.endpoint.instance_id: dialer.dial(host.endpoint) for host in hosts}
    for connection in opened.values():
        connection.send_contents({"peer.py": template("peer.py").encode()}, FOLDER)
    return opened, [host.root / "home" for host in hosts]


@pytest.fixture
def shared(connections, tmp_path):
    """What sends a project to either of the instances."""
    opened, _ = connections
    project = tmp_path / "project"
    (project / "inner").mkdir(parents=True)
    (project / "inner" / "data.bin").write_bytes(b"data" * (LEAST_BYTES // 4 // FEWEST))
    (project / "run.py").write_text("print('hello')\n")
    files = list_files(project).entries
    sharing = Sharing(allow=lambda: None)
    sharing.expect(FEWEST)

    def send(name):
        peer = EnvironmentPeer(instance_id=name, host="127.0.0.1", connect=lambda: opened[name])
        sent = []
        sharing.send(opened[name], peer, files, "my work", on_sent=sent.append)
        return sum(sent)

    return send


def test_the_second_instance_copies_from_the_first(connections, shared):
    _, (first, second) = connections
    assert shared("i-0abc") > 0
    assert shared("i-0def") == 0
    for home in (first, second):
        assert (home / "my work" / "inner" / "data.bin").stat().st_size == LEAST_BYTES // FEWEST
        assert (home / "my work" / "run.py").read_text() == "print('hello')\n"


def test_an_archive_that_was_changed_is_not_unpacked_but_sent_from_here(connections, shared):
    _, (first, second) = connections
    shared("i-0abc")
    (archive,) = (first / PLACE).glob("*/archive")
    archive.write_bytes(archive.read_bytes()[:-1] + b"!")
    assert shared("i-0def") > 0
    assert (second / "my work" / "run.py").read_text() == "print('hello')\n"


def test_small_files_are_written_whole_over_earlier_ones(connections):
    opened, (home, _) = connections
    for text in (b"first", b"second"):
        opened["i-0abc"].send_contents({"one.txt": text, "two.txt": b"2"}, "a folder")
    assert sorted(path.name for path in (home / "a folder").iterdir()) == ["one.txt", "two.txt"]
    assert (home / "a folder" / "one.txt").read_bytes() == b"second"
    assert (home / "a folder" / "one.txt").stat().st_mode & 0o777 == 0o644
