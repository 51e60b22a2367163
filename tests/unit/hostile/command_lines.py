"""Run command lines in this process, where they find no cloud and nothing but a folder of their own."""

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlcloud.app.clouds import AccountClients
from dlcloud.cli import main as cli
from dlcloud.local.site import LocalSite
from dlcloud.model.errors import CredentialsError, LocalCloudError

EXITS = {0, 1, 2, 3, 4, 5, 130}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command line ended: its status, and what it printed."""

    status: int
    out: str
    err: str


class Output(io.StringIO):
    """Text with a buffer of bytes beside it, as standard streams have."""

    def __init__(self):
        super().__init__()
        self.buffer = io.BytesIO()

    def getvalue(self):
        return super().getvalue() + self.buffer.getvalue().decode("utf-8", "replace")


@contextlib.contextmanager
def no_cloud(patch, home: Path) -> Iterator[Path]:
    """Keep every command from a cloud, in a home and a folder of its own; yields the folder.

    Args:
        patch: pytest's MonkeyPatch.
        home: Is made by the commands, beside the folder.
    """

    def refuse(*_):
        raise CredentialsError("there are no credentials", "aws configure")

    def not_started(*_, **__):
        raise LocalCloudError("not started in this test")

    patch.setattr(AccountClients, "get", refuse)
    for name in ("start", "stop"):
        patch.setattr(LocalSite, name, not_started)
    patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    patch.setenv("DLCLOUD_HOME", str(home))
    patch.setenv("DLCLOUD_CONFIG", str(home.with_name("config.yaml")))
    folder = home.parent / "c"
    folder.mkdir(parents=True)
    patch.chdir(folder)
    yield folder


def run(patch, words: Sequence[str]) -> Ended:
    """Run a command line as the program would be run."""
    out, err = Output(), Output()
    patch.setattr(sys, "argv", ["dlcloud", *words])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.run()
    return Ended(status=status, out=out.getvalue(), err=err.getvalue())


def check(ended: Ended, folder: Path, where: str) -> None:
    """Assert that a command line ended as documented, and that no word of it was run by a shell."""
    where = f"{where}\n{ended.out}{ended.err}"
    assert ended.status in EXITS, where
    assert "Traceback" not in ended.out + ended.err, where
    assert ended.status in {0, 130} or ended.err, where
    assert not any(folder.rglob("owned")), where
