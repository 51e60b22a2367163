"""Keep a copy of the user's files on an instance, and copy it to runs: python3 -I -S files.py VERB FOLDER ...

manifest FOLDER      print what the last whole sending left: JSON, {NAME: STAMP}; {} after a cut-off one, null
                     before the first
remove FOLDER        forget the manifest; remove the names of a JSON list on stdin, of null everything
finish FOLDER WORK   store the manifest on stdin, and copy FOLDER/tree to WORK

The launcher unpacks what changed into FOLDER/tree between the last two.
"""

import contextlib
import json
import pathlib
import shutil
import sys


def manifest(folder: pathlib.Path) -> None:
    """Print the stamps of what is there, and make the folder for the first files."""
    path, tree = folder / "manifest.json", folder / "tree"
    print(path.read_text() if path.exists() else "{}" if tree.exists() else "null")
    tree.mkdir(parents=True, exist_ok=True)


def remove(folder: pathlib.Path) -> None:
    """Remove what the launcher no longer has."""
    names = json.load(sys.stdin)
    tree = folder / "tree"
    (folder / "manifest.json").unlink(missing_ok=True)
    if names is None:
        shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True, exist_ok=True)
    for name in names or ():
        path = tree / name
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        else:
            with contextlib.suppress(OSError):  # it has files again, or never had this name
                path.rmdir()


def finish(folder: pathlib.Path, work: str) -> None:
    """Store the manifest, whole or not at all, and give a run its copy."""
    unfinished = folder / "manifest.json.new"
    unfinished.write_bytes(sys.stdin.buffer.read())
    unfinished.rename(folder / "manifest.json")
    shutil.copytree(folder / "tree", work, symlinks=True, dirs_exist_ok=True)


def main() -> None:
    """Run the verb of the command line."""
    verb, folder, *rest = sys.argv[1:]
    {"manifest": manifest, "remove": remove, "finish": finish}[verb](pathlib.Path(folder), *rest)


main()
