"""The pages for people: generated tables are fresh, links and named files exist, the README stays short."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from dlcloud.benchmarks.catalog import BENCHMARKS
from dlcloud.benchmarks.harness import benchmark
from dlcloud.cli.main import dlcloud
from dlcloud.model.errors import SOURCE
from dlcloud.recipe.recipe import read_recipe, recipe_schema

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "llms.txt",
    ROOT / "templates" / "skill.md",
    ROOT / ".github" / "CONTRIBUTING.md",
    ROOT / "tests" / "performance" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def test_generated_tables_are_fresh():
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def test_the_site_is_built_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", ROOT / ".github" / "site" / "mkdocs.yml"]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*command, "-d", tmp_path], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    front = (tmp_path / "index.html").read_text("utf-8")
    assert 'href="your-own-script/"' in front
    assert 'href="https://github.com/dlcloud/dlcloud/blob/main/LICENSE"' in front


def test_the_readme_is_a_front_page():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 150
    # .ci/run executes this line.
    assert text.count("python -m pytest") == 1


def test_the_recipe_of_the_readme_is_valid(tmp_path):
    recipe = (ROOT / "README.md").read_text("utf-8").partition("```yaml\n")[2].partition("```")[0]
    assert read_recipe(recipe, str(tmp_path / "train.yaml")).name == "train"


@page
def test_the_install_line_names_where_dlcloud_is(page):
    text = page.read_text("utf-8")
    assert re.findall(rf"'dlcloud\[[\w,]+\](?!{re.escape(SOURCE)}').*", text) == []


@page
def test_links_lead_to_files_and_headings(page):
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    for link in links:
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


def headings(page):
    lines = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


@page
def test_files_that_a_page_names_exist(page):
    names = re.findall(r"`((?:dlcloud|tests|docs|recipes|templates)/[\w./-]*)`", page.read_text("utf-8"))
    assert [name for name in names if not (ROOT / name).exists()] == []


PROJECT_PAGES = {"architecture", "evidence", "pressure"}
USER_PAGES = [path for path in PAGES if path.parent.name == "docs" and path.stem not in PROJECT_PAGES]
user_page = pytest.mark.parametrize("page", [ROOT / "README.md", *USER_PAGES], ids=lambda path: path.stem)
LONGEST_SENTENCE = 35
OPENINGS = {"as", "at", "beside", "by", "for", "from", "in", "of", "on", "to", "what", "who", "whose", "with"}
"""Words with which a meaning does not stand alone: the reader would have to read its name first."""
AVOIDED = re.compile(
    r"\b(anew|for ever|but for|so many|whom|whoever|go(es)? on|at once|beside|mend(s|ed)?|gives? back)\b"
    r"|\bends? (itself|themselves)\b"
    r"|\b(brought|comes?|brings? (the )?\w+) home\b|of (its|your|their) own\b(?! \w)"
)


@user_page
def test_pages_are_plain(page):
    text = page.read_text("utf-8")
    assert [sentence for sentence in sentences(text) if len(sentence.split()) > LONGEST_SENTENCE] == []


@page
def test_pages_avoid_words_that_are_not_plain(page):
    assert [found[0] for found in AVOIDED.finditer(prose(page.read_text("utf-8")))] == []


def test_helps_are_plain_and_stand_alone():
    helps, meanings = [], []
    for command, context in commands(dlcloud, click.Context(dlcloud, info_name="dlcloud")):
        helps.append(command.help or "")
        context.terminal_width = 80
        assert [line for line in command.get_help(context).splitlines() if len(line) > 80] == []
        meanings += [record[1] for option in command.params if (record := option.get_help_record(context))]
    for part in (schema := recipe_schema()), *schema["$defs"].values():
        meanings += [part.get("description", "")]
        meanings += [key.get("description", "") for key in part.get("properties", {}).values()]
    options = [
        *benchmark.COMMON,
        *benchmark.ROUNDS,
        *(o for entry in BENCHMARKS.values() for o in entry.options),
    ]
    meanings += [option.help for option in options]
    texts = [" ".join(text.split()) for text in (*helps, *meanings)]
    assert [text for text in texts if AVOIDED.search(text)] == []
    long = [s for text in (*helps, *meanings) for s in sentences(text) if len(s.split()) > LONGEST_SENTENCE]
    assert long == []
    assert [text for text in meanings if text.split()[:1] and text.split()[0].lower() in OPENINGS] == []


def test_messages_are_plain():
    found = []
    for path in (ROOT / "dlcloud").rglob("*.py"):
        text = path.read_text("utf-8")
        if not AVOIDED.search(text):
            continue
        tree = ast.parse(text)
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                found += [(path.name, node.value) for _ in AVOIDED.finditer(node.value) if " " in node.value]
    assert found == []


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, context
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        inner = command.get_command(context, name)
        yield from commands(inner, click.Context(inner, info_name=name, parent=context))


def prose(text: str) -> str:
    return re.sub(r"```.*?```|<!--.*?-->|^#.*?$", "", text, flags=re.DOTALL | re.MULTILINE)


def sentences(text: str) -> Iterator[str]:
    paragraphs = re.split(
        r"\n\s*\n|\n(?=\s*(?:- |\d+\. |> |\|))|\x08", re.sub(r"^\|.*$", "", prose(text), flags=re.MULTILINE)
    )
    for paragraph in paragraphs:
        yield from re.split(r"(?<=[.!?])[)*]*\s+(?=[-A-Z`*\[])", " ".join(paragraph.split()))


def test_every_performance_program_is_described():
    text = (ROOT / "tests" / "performance" / "README.md").read_text("utf-8")
    programs = {path.name for path in (ROOT / "tests" / "performance").glob("*.py")}
    programs -= {"common.py", "light_ec2.py", "other_jobs.py"}  # the others use them
    assert programs == set(re.findall(r"python tests/performance/(\w+\.py)", text))


def test_the_script_that_reports_its_throughput_does_so(tmp_path):
    page = (ROOT / "docs" / "your-own-script.md").read_text("utf-8")
    script = tmp_path / "train.py"
    blocks = page.split("```python\n")[1:]
    script.write_text(next(block for block in blocks if "BATCH" in block).partition("```")[0], "utf-8")
    reported = tmp_path / "reported"
    subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={**os.environ, "DLCLOUD_REPORT": str(reported), "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=60,
    )
    values = [float(line) for line in reported.read_text().split()]
    assert len(values) == 19
    assert all(0 < value <= 64 / 0.01 for value in values)


def test_the_skill_names_itself_and_says_when_to_use_it():
    text = (ROOT / ".claude" / "skills" / "dlcloud" / "SKILL.md").read_text("utf-8")
    assert text == (ROOT / "templates" / "skill.md").read_text("utf-8")
    front = yaml.safe_load(text.split("---")[1])
    assert front["name"] == "dlcloud"
    assert 100 < len(front["description"]) <= 1024
    assert len(text.splitlines()) < 500
