"""Where reports are written: files are replaced whole, devices and pipes are written to."""

import os
import stat

import pytest

from dlcloud.model.errors import RecipeError
from dlcloud.report.files import report_file


def write(path, text="new"):
    with report_file(path) as draft:
        draft.write_text(text)


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old and longer")
    write(path)
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [*tmp_path.iterdir()] == [path]


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    """As /dev/null does, which root could replace."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write(path)
    assert os.read(reader, 10) == b"new"
    os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert [*tmp_path.iterdir()] == [path]


def test_a_folder_is_no_report(tmp_path):
    with pytest.raises(RecipeError, match="cannot be written"):
        write(tmp_path)
