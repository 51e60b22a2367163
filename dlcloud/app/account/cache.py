"""`dlcloud gc --cache`: what can be made again and takes room in this home, and its removal."""

import sys
from collections.abc import Sequence

from dlcloud.app.account.caches import MOST_BYTES, CacheEntry, list_entries, remove_cache, size_text
from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import confirm, say
from dlcloud.model.errors import BudgetError, PartialError
from dlcloud.report.table import Format, Report, Section, render


def run(context: Context, *, dry_run: bool, yes: bool, output: str) -> None:
    """Show what the caches of this home take and, unless `dry_run`, remove what no cluster uses.

    Raises:
        BudgetError: Nothing can be asked, and `yes` is not set.
        PartialError: Something could not be removed.
    """
    entries = list_entries(context)
    say(render(_report(entries), Format(output)))
    removable = [entry for entry in entries if not entry.is_used]
    if dry_run or not removable:
        return
    if not yes and not sys.stdin.isatty():
        raise BudgetError("this removes files for good, and stdin is not a terminal", "pass --yes to confirm")
    if not yes:
        confirm(f"Remove {len(removable)} of them, {size_text(sum(e.size_bytes for e in removable))}?")
    left = [entry for entry in removable if not remove_cache(entry.path)]
    if left:
        names = ", ".join(str(entry.path) for entry in left)
        raise PartialError(f"not removed: {names}", "remove them by hand", result_shown=True)
    say(f"removed {size_text(sum(entry.size_bytes for entry in removable))}", err=True)


def _report(entries: Sequence[CacheEntry]) -> Report:
    total = size_text(sum(entry.size_bytes for entry in entries))
    notes = [f"{total} in all; each is made again when it is needed"]
    notes.append(
        f"beyond {size_text(MOST_BYTES)} what was not used for longest goes by itself, at an up or bench"
    )
    if any(entry.is_used for entry in entries):
        notes.append("used: a cluster of the local EC2 is up, whose instances share it")
    return Report(
        command="gc",
        records=[
            {
                "what": entry.kind,
                "path": str(entry.path),
                "bytes": entry.size_bytes,
                "changed_at": entry.changed_at.isoformat(),
                "used": entry.is_used,
            }
            for entry in entries
        ],
        sections=[
            Section(
                heading="",
                titles=("what", "name", "size", "changed", "used"),
                rows=[
                    (
                        entry.kind,
                        entry.path.name,
                        size_text(entry.size_bytes),
                        f"{entry.changed_at:%Y-%m-%d}",
                        "yes" if entry.is_used else "",
                    )
                    for entry in entries
                ],
                notes=notes,
                numeric=frozenset({2}),
            )
        ]
        if entries
        else [],
        empty="the caches are empty",
    )
