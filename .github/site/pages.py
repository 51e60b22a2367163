"""What the site adds to the pages: the README is its first page, and links to other files lead to GitHub."""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\(|src=\")(?!https?://|#)([^)\"#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take the README as the first page."""
    text = re.sub(LINK, _from_docs, (ROOT / "README.md").read_text("utf-8"))
    files.append(File.generated(config, "index.md", content=text))
    return files


def _from_docs(found: re.Match[str]) -> str:
    path = found[2]
    return found[1] + (path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}")


def on_page_markdown(markdown: str, config: MkDocsConfig, **_: Any) -> str:  # noqa: ANN401  mkdocs passes page and files
    """Let links that leave docs/ lead to the file on GitHub."""

    def replace(found: re.Match[str]) -> str:
        path = PurePosixPath(normpath(f"docs/{found[2]}"))
        return found[0] if path.parts[0] == "docs" else f"{found[1]}{config.repo_url}/blob/main/{path}"

    return re.sub(LINK, replace, markdown)
