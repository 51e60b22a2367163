"""s3fs with pandas, which needs a botocore of its own, called from another virtual environment.

`.ci/run` makes one where CI is set, and names it by DLCLOUD_TEST_CLIENTS; without one the test is skipped.
"""

import os
import subprocess
from pathlib import Path

import pytest

from dlcloud.local.site import LocalSite
from tests.fakes.local_ec2 import Rig
from tests.prefork import Daemons

CLIENTS = Path(os.environ.get("DLCLOUD_TEST_CLIENTS") or "/nonexistent") / "bin"
BUCKETS = """
import pandas, s3fs
files = s3fs.S3FileSystem()
files.mkdir("tables")
frame = pandas.DataFrame({"x": range(1000), "y": [f"row {i}" for i in range(1000)]})
frame.to_csv("s3://tables/a/frame.csv", index=False)
assert pandas.read_csv("s3://tables/a/frame.csv").equals(frame)
with files.open("tables/large", "wb", block_size=5 << 20) as stream:
    for _ in range(12):
        stream.write(bytes(1 << 20))
assert files.info("tables/large")["size"] == 12 << 20
assert files.ls("tables") == ["tables/a", "tables/large"]
files.rm("tables", recursive=True)
"""


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    site = LocalSite(tmp_path_factory.mktemp("site"))
    yield Rig(site, Daemons.of_this_process().start(site))
    site.stop()


@pytest.fixture
def call(rig, tmp_path):
    """Run a program of the clients' environment, and return what it printed."""
    environ = {"PATH": f"{CLIENTS}:{os.environ['PATH']}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    environ |= {**rig.endpoint.environment(), "TMPDIR": str(tmp_path)}

    def run(name, *words):
        command = [CLIENTS / name, *words]
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.skipif(not (CLIENTS / "python").exists(), reason="DLCLOUD_TEST_CLIENTS names no environment")
def test_pandas_and_s3fs_write_and_read_buckets(call, tmp_path):
    (tmp_path / "program.py").write_text(BUCKETS)
    call("python", "program.py")
