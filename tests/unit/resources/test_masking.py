"""One table of secrets and of the forms in which programs print them, held by all that mask."""

import base64
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from dlcloud.benchmarks.harness import masking as masking_of_benchmarks
from dlcloud.model import job_environment
from dlcloud.resources.texts import template
from dlcloud.trainer import masking
from dlcloud.trainer.records import EventName, Records

LIMIT_S = 600.0
LONGEST_SHOWN = 30
"""Characters: the words around a secret, the mask, and the quotes of a form."""

QUOTES = "it's \"se'cret\" 0001"
BACKSLASH = "C:\\new\\table'0002"
LINES = "first line of a key\nsecond line of a key"
ACCENTS = "pässwörd/+&=?0003"
PLAIN = "plain-secret-0004"
FIRST, SECOND = "begins-0005-overlap", "overlap-0006-ends"

FORMS = {
    "as it is": lambda secret: secret,
    "repr": repr,
    "repr beside the other quote": lambda secret: repr('"' + secret + "'")[2:],
    "repr of bytes": lambda secret: repr(secret.encode()),
    "JSON": json.dumps,
    "JSON with its letters": lambda secret: json.dumps(secret, ensure_ascii=False),
    "a shell's": shlex.quote,
    "a shell's with backslashes": lambda secret: "'" + secret.replace("'", "'\\''") + "'",
    "URL path": quote,
    "URL": lambda secret: quote(secret, safe=""),
    "URL in small letters": lambda secret: re.sub("%..", lambda code: code[0].lower(), quote(secret)),
    "form": quote_plus,
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "base64 of URLs": lambda secret: base64.urlsafe_b64encode(secret.encode()).decode(),
    "basic authentication": lambda secret: base64.b64encode(f"u:{secret}".encode()).decode(),
    "basic, one letter more": lambda secret: base64.b64encode(f"us:{secret}".encode()).decode(),
}
CASES = {
    **{
        f"{name} of {secret[:8]!r}": (secret, form(secret))
        for secret in (QUOTES, BACKSLASH, LINES, ACCENTS, PLAIN)
        for name, form in FORMS.items()
    },
    "one line": (LINES, "x second line of a key x"),
    "two that overlap": (f"{FIRST} {SECOND}", "begins-0005-overlap-0006-ends"),
}


def clean(shown):
    """True if no part of a secret, in whichever form, is left in what is shown."""
    words = ("0001", "0002", "0003", "0004", "0005", "0006", "line", "of a key", "overlap", "cret", "swö")
    return not [word for word in words if word in shown] and "***" in shown and len(shown) < LONGEST_SHOWN


def environment_of(secret):
    secrets = {"ONE": FIRST, "TWO": SECOND} if secret.startswith(FIRST) else {"ONE": secret}
    return {**secrets, "DLCLOUD_SECRETS": " ".join(secrets)}


def by_trainer(environment, text, folder):
    lines = []
    texts = masking.secret_texts(environment)
    with Records(path=folder / "records", run="r", worker="w", log=lines.append) as records:
        records._secrets = texts
        records.event(EventName.CHECKPOINT_FAILED, text)
    return json.loads((folder / "records").read_text().splitlines()[0])["cause"]


def by_benchmarks(environment, text, _folder):
    texts = masking_of_benchmarks.secret_texts(environment)
    return masking_of_benchmarks.mask({"cause": text}, texts)["cause"]


def by_job(environment, text, folder):
    run = folder / "run"
    (run / "work").mkdir(parents=True)
    (folder / "job.py").write_text(template("job.py"))
    shutil.copy(masking.__file__, folder)
    (run / "work" / "text").write_text(text)
    (run / "command").write_text("cat text\n")
    secrets = {name: environment[name] for name in environment["DLCLOUD_SECRETS"].split()}
    done = subprocess.run(
        [sys.executable, "-I", "-S", folder / "job.py", "supervise", run],
        input=json.dumps({"variables": {}, "secrets": secrets}).encode(),
        capture_output=True,
        check=True,
        timeout=LIMIT_S,
    )
    return done.stdout.decode()


@pytest.mark.parametrize("masked", [by_trainer, by_benchmarks, by_job])
@pytest.mark.parametrize("case", CASES)
def test_no_form_of_a_secret_is_left(case, masked, tmp_path):
    secret, text = CASES[case]
    shown = masked(environment_of(secret), f"before {text} after", tmp_path)
    assert clean(shown), shown
    assert shown.startswith("before ")
    assert shown.endswith(" after")


def test_both_islands_have_one_file_and_the_launcher_the_same_words():
    assert Path(masking.__file__).read_bytes() == Path(masking_of_benchmarks.__file__).read_bytes()
    assert masking.NAMES == job_environment.NAMES_VARIABLE
    assert masking.MASKED_LENGTH == job_environment.MASKED_LENGTH


def test_without_the_masker_no_program_with_secrets_starts(tmp_path):
    run = tmp_path / "run"
    (run / "work").mkdir(parents=True)
    (tmp_path / "job.py").write_text(template("job.py"))
    (run / "command").write_text("touch started\n")
    given = json.dumps({"secrets": {"ONE": PLAIN}}).encode()
    command = [sys.executable, "-I", "-S", tmp_path / "job.py", "supervise", run]
    done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=LIMIT_S)
    assert done.returncode != 0
    assert not (run / "work" / "started").exists()
