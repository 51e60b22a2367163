"""`dlcloud debug`: what a bug report needs, in one archive, with secrets masked."""

import json
import os
import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from dlcloud.app.context import Context
from dlcloud.app.profiles import configuration_file
from dlcloud.app.terminal.screen import agrees, say
from dlcloud.model.errors import RecipeError, StoreError
from dlcloud.recipe.sent_files import format_size
from dlcloud.report.files import report_file
from dlcloud.store.database import rows_of_tables

LOGS = 5
"""The newest logs of commands."""
LOG_BYTES = 256 * 1024
"""Of the end of each log."""
MASK = "***"
_WORDS = r"[\w-]*(?:secret|token|passw(?:or)?d|api[_-]?key|access[_-]?key|credential|external[_-]?id)[\w-]*"
_SECRETS = (
    (re.compile(rf"(?i)(\b{_WORDS}[\"']?\s*[:=]\s*|--{_WORDS}\s+)([\"'])(?:(?!\2).)*"), rf"\1\2{MASK}"),
    (re.compile(rf"(?i)(\b{_WORDS}[\"']?\s*[:=]\s*|--{_WORDS}\s+)(?!\s)[^\s\"',}}]+"), rf"\1{MASK}"),
    (
        re.compile(r"(?i)(\bbearer\s+|\b(?:hf_|gh[opsu]_|github_pat_|glpat-|xox[abp]-|sk-))[\w.~+/-]{6,}"),
        rf"\1{MASK}",
    ),
    (
        re.compile(r"(?i)\b((?:authorization|x-amz-[a-z-]*(?:token|signature))[\"']?\s*[:=]\s*).+"),
        rf"\1{MASK}",
    ),
    (re.compile(r"(?<=://)[^/@\s]+(?=@)"), MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
    (re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"), MASK),
)
_SECRET_VARIABLE = re.compile(rf"(?i){_WORDS}|\w+_(?:key|pat|pass|pwd)")
_SHORTEST = 6
"""Characters of a value of the environment that is masked wherever it stands."""
_OTHERS = ("boto3", "botocore", "paramiko", "click", "pydantic", "moto", "asyncssh", "rich")


def run(context: Context, *, file: str, dry_run: bool, yes: bool) -> None:
    """Show what an archive for a bug report contains, and write it.

    Args:
        context: The collaborators.
        file: The archive.
        dry_run: Print the texts whole; write nothing.
        yes: Do not ask.

    Raises:
        RecipeError: It cannot be written.
    """
    texts = {name: masked(text) for name, text in _texts(context)}
    if dry_run:
        for name, text in texts.items():
            say(f"--- {name}\n{text.rstrip()}\n")
        return
    for name, text in texts.items():
        say(f"{format_size(len(text.encode())):>10}  {name}")
    target = Path(file)
    if target.exists():
        raise RecipeError(f"{file} exists and was not changed", "name another file")
    if (
        not yes
        and sys.stdin.isatty()
        and not agrees(f"write {file}? dlcloud debug --dry-run prints it whole")
    ):
        return
    with report_file(target) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    say(f"wrote {file}: secrets are masked; read it before you send it")


def masked(text: str) -> str:
    """Return a text with masks for what looks like a secret, and for the environment's secrets."""
    values = {value for name, value in os.environ.items() if _SECRET_VARIABLE.fullmatch(name)}
    for value in sorted((value for value in values if len(value) >= _SHORTEST), key=len, reverse=True):
        text = text.replace(value, MASK)
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def _texts(context: Context) -> list[tuple[str, str]]:
    paths = context.paths
    texts = [("versions.json", _versions()), ("store.json", _store(context))]
    configuration = configuration_file()
    if configuration.is_file():
        texts.append(("config.yaml", _end_of(configuration)))
    logs = sorted(paths.logs.glob("*.log"), key=lambda path: path.stat().st_mtime, reverse=True)[:LOGS]
    texts += [(f"logs/{log.name}", _end_of(log)) for log in logs]
    daemon = paths.local_site / "daemon.log"
    return [*texts, ("local/daemon.log", _end_of(daemon))] if daemon.is_file() else texts


def _end_of(file: Path) -> str:
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - LOG_BYTES))
        return stream.read().decode("utf-8", "replace")


def _versions() -> str:
    packages = {}
    for name in ("dlcloud", *_OTHERS):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = "not installed"
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith("DLCLOUD_")}
    named = [
        name for name in sorted(os.environ) if name.startswith("AWS_") or name.lower().endswith("_proxy")
    ]
    document = {
        "packages": packages,
        "python": sys.version,
        "platform": platform.platform(),
        "programs": {name: shutil.which(name) or "" for name in ("uv", "ssh", "rsync", "nvidia-smi")},
        "variables": variables,
        "set": named,
    }
    return json.dumps(document, indent=1) + "\n"


def _store(context: Context) -> str:
    try:
        document: Mapping[str, object] = rows_of_tables(context.paths.database)
    except StoreError as error:
        document = {"error": error.message}
    return json.dumps(document, indent=1) + "\n"
