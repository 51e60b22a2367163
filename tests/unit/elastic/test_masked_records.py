"""What a training writes has no secret of the launcher's, wherever an error quotes one."""

import json

import pytest

from dlcloud.trainer.masking import MASK, mask, secret_texts
from dlcloud.trainer.records import EventName, Records

TOKEN = "hf_token-in-an-exception"
KEY = "first line of a key\nsecond line of a key"
SECRETS = {"DLCLOUD_SECRETS": "TOKEN KEY PIN GONE", "TOKEN": TOKEN, "KEY": KEY, "PIN": "1234567"}


@pytest.fixture
def environment(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environment")
def test_records_and_logs_mask_the_secret_in_an_error(tmp_path):
    lines = []
    with Records(path=tmp_path / "records", run="r", worker="w", log=lines.append) as records:
        error = RuntimeError(f"cannot log in with {TOKEN}")
        records.event(EventName.CHECKPOINT_FAILED, str(error), path=f"/tmp/{TOKEN}", step=3)
        records.event(EventName.NO_QUORUM, repr(ValueError(KEY)))
        records.start(settings={TOKEN: [TOKEN, 1]}, device=None)
        lines.append(records.step(step=4, loss=0.5, note=f"of {TOKEN}"))
        records.end(status=1, cause=KEY)
    written = (tmp_path / "records").read_text()
    for text in (written, "\n".join(lines), repr(records)):
        assert TOKEN not in text
        assert "line of a key" not in text
    first, _, start, step, _ = (json.loads(line) for line in written.splitlines())
    assert first["cause"] == f"cannot log in with {MASK}"
    assert start["settings"] == {MASK: [MASK, 1]}
    assert (step["step"], step["loss"]) == (4, 0.5)


def test_what_is_too_short_to_be_masked_stays():
    texts = secret_texts(SECRETS)
    assert mask({"pin": "1234567", "steps": (1, 2)}, texts) == {"pin": "1234567", "steps": [1, 2]}
    assert mask(f"{TOKEN}{TOKEN}", texts) == MASK * 2
    assert secret_texts({}) == ()
