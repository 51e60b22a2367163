"""Folders readable by the user only, and every path below home."""

import os
import stat

import pytest

from dlcloud.model.errors import StoreError
from dlcloud.store.home import Paths


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_every_folder_is_made_for_the_user_only(tmp_path):
    paths = Paths(tmp_path / "deep" / "home")
    old = os.umask(0o000)
    try:
        made = paths.make_folder(paths.cluster("c0ffee"))
    finally:
        os.umask(old)
    assert made == tmp_path / "deep" / "home" / "clusters" / "c0ffee"
    assert {mode(folder) for folder in (paths.home, made.parent, made)} == {0o700}
    assert paths.make_folder(made) == made


def test_a_home_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    paths = Paths(tmp_path / "file" / "home")
    with pytest.raises(StoreError) as caught:
        paths.make_folder(paths.logs)
    assert str(tmp_path / "file") in caught.value.message
    assert "DLCLOUD_HOME" in caught.value.hint


def test_every_path_lies_below_home_and_no_two_are_one(tmp_path):
    paths = Paths(tmp_path)
    all_of_them = [
        paths.database, paths.local_site, paths.logs, paths.key("c"), paths.known_hosts("c"),
        paths.host_secret("c"), paths.user_data("c", 60), paths.cluster_lock("c"),
        paths.run_log("r"), paths.run_files("r"),
    ]  # fmt: skip
    assert len(set(all_of_them)) == len(all_of_them)
    assert all(path.is_relative_to(tmp_path) for path in all_of_them)
