"""Names that a shell would take apart: they reach a real shell as names, and nothing of them is run."""

from dataclasses import replace

import pytest

from dlcloud.launch.remote_jobs import folder_of, log_command
from tests.fakes.samples import run
from tests.needs import needs
from tests.unit.hostile.test_hostile_inputs import SHELL

pytestmark = needs("tar")


@pytest.mark.parametrize("word", [word for word in SHELL if word != "--"])
def test_a_name_is_never_run_by_the_shell(connection, host, tmp_path, word):
    home = host.root / "home"
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / word).write_text("content")
    connection.send_tree(tmp_path / "source", f"{word}/tree")
    connection.send_bytes(b"one", f"{word}/file")
    fetched = connection.fetch_files(f"{word}", ["**"], tmp_path / "fetched")
    assert sorted(path.relative_to(tmp_path / "fetched").as_posix() for path in fetched) == sorted(
        ["file", f"tree/{word}"]
    )
    assert {path.name for path in home.iterdir()} == {word}
    assert not list(host.root.rglob("owned"))


@pytest.mark.parametrize("word", SHELL)
def test_the_folder_of_a_run_is_one_word_for_the_shell(connection, host, word):
    odd = replace(run(), run_id=f"{word}-0001")
    printed = connection.check(f"printf '<%s>' {folder_of(odd)}").decode()
    assert printed == f"<dlcloud/runs/{word}-0001>"
    connection.run(log_command(odd, follow=False))
    assert not list(host.root.rglob("owned"))
