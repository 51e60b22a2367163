"""`dlcloud debug` puts what a bug report needs into one archive, and no secret."""

import zipfile
from contextlib import closing
from types import SimpleNamespace

import pytest

from dlcloud.app.debug import masked, run
from dlcloud.model.errors import RecipeError
from dlcloud.store.clusters import Clusters
from dlcloud.store.database import Database
from dlcloud.store.home import Paths
from tests.fakes.samples import cluster


@pytest.fixture
def context(tmp_path, monkeypatch):
    paths = Paths(tmp_path / "home")
    paths.make_folder(paths.logs)
    with closing(Database(paths.database)) as database:
        Clusters(database).add(cluster())
    (paths.logs / "up.log").write_text("calling https://me:hunter2@host/x with topsecretvalue\nDEBUG done\n")
    (tmp_path / "config.yaml").write_text("profiles:\n  work: {external_id: abc-123, aws_profile: work}\n")
    monkeypatch.setenv("DLCLOUD_CONFIG", str(tmp_path / "config.yaml"))
    monkeypatch.setenv("MY_API_KEY", "topsecretvalue")
    return SimpleNamespace(paths=paths)


def test_the_archive_has_what_was_listed_and_no_secret(context, tmp_path, capsys):
    file = tmp_path / "debug.zip"
    run(context, file=str(file), dry_run=False, yes=True)
    shown = capsys.readouterr().out
    with zipfile.ZipFile(file) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert all(name in shown for name in texts)
    assert '"clusters": 1' in texts["store.json"]
    assert '"schema":' in texts["store.json"]
    assert "dlcloud" in texts["versions.json"]
    assert "DEBUG done" in texts["logs/up.log"]
    assert "aws_profile: work" in texts["config.yaml"]
    whole = "".join(texts.values())
    assert not any(secret in whole for secret in ("hunter2", "topsecretvalue", "abc-123"))
    with pytest.raises(RecipeError, match="exists and was not changed"):
        run(context, file=str(file), dry_run=False, yes=True)


def test_a_dry_run_prints_it_and_writes_nothing(context, tmp_path, capsys):
    run(context, file=str(tmp_path / "debug.zip"), dry_run=True, yes=False)
    assert "--- store.json" in capsys.readouterr().out
    assert not (tmp_path / "debug.zip").exists()


@pytest.mark.parametrize(
    "text",
    [
        "AWS_SECRET_ACCESS_KEY=wJalrXUt",
        '"aws_session_token": "wJalrXUt"',
        "HF_TOKEN: wJalrXUt",
        "password = wJalrXUt",
        "Authorization: Bearer wJalrXUt",
        "X-Amz-Security-Token: wJalrXUt",
        "train.py --api-key wJalrXUt",
        "password: 'two wJalrXUt'",
        "pushed with hf_wJalrXUt",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nwJalrXUt\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_what_is_named_like_a_secret_is_masked(text):
    assert "wJalrXUt" not in masked(text)


def test_words_that_are_no_secret_stay():
    text = "run finetune: 12 tokens a second, key pair dlcloud-1, type c7i.xlarge"
    assert masked(text) == text
