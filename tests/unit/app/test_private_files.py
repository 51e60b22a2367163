"""What dlcloud keeps is its user's alone, whatever the umask."""

import os
import stat

from click.testing import CliRunner

from dlcloud.app.context import LogFile
from dlcloud.cli.main import dlcloud
from dlcloud.local.site import LocalSite


def open_to_others(folder):
    return [str(path) for path in (folder, *folder.rglob("*")) if stat.S_IMODE(path.lstat().st_mode) & 0o022]


def test_configuration_and_local_ec2_are_closed_to_others_at_any_umask(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("DLCLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DLCLOUD_CONFIG", raising=False)
    (tmp_path / "config").mkdir(mode=0o755)
    umask = os.umask(0)
    try:
        done = CliRunner().invoke(dlcloud, ["budget", "500/month"])
        assert done.exit_code == 0, done.output
        LogFile(tmp_path / "home/log").close()
        site = LocalSite(tmp_path / "home/local")
        site.start()
        site.stop()
    finally:
        os.umask(umask)
    assert open_to_others(tmp_path / "config") == []
    assert [path for path in open_to_others(tmp_path / "home") if "layers" not in path] == []
