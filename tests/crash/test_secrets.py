"""Nothing secret is left in logs or state, or shown in process lists, by a whole `up`."""

import subprocess
from pathlib import Path

from tests.needs import needs

RECIPE = """
name: secret
cloud: local
instances: {types: [c5.large]}
workload: {command: 'ps -eo args', repeats: 1}
"""


def secrets_of(home):
    """Return the words of a cluster's private files that no other user may read."""
    (folder,) = (home.folder / "clusters").iterdir()
    key = [line for line in (folder / "key").read_text().splitlines() if len(line) > 40]
    return [(folder / "host-secret").read_text().strip(), *key]


def readable(home):
    """Yield every file of the home but the private ones of clusters and instances."""
    for path in home.folder.rglob("*"):
        private = "clusters" in path.parts or "instances" in path.parts
        if path.is_file() and not private:
            yield path


@needs("ps")
def test_neither_logs_nor_the_store_nor_process_lists_contain_a_secret(home):
    path = home.folder / "secret.yaml"
    path.write_text(RECIPE)
    home.run("up", str(path), "--keep", "--name", "secret", "-v", expect=0)
    words = [word.encode() for word in secrets_of(home)]
    assert len(words) > 3
    for file in readable(home):
        content = file.read_bytes()
        assert not any(word in content for word in words), file
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, check=True).stdout
    assert not any(word in listed for word in words)
    for private in ("key", "host-secret", "user-data-240"):
        (there,) = (home.folder / "clusters").glob(f"*/{private}")
        assert Path(there).stat().st_mode & 0o077 == 0
    home.run("down", "--all", expect=0)
    assert not list((home.folder / "clusters").glob("*"))
