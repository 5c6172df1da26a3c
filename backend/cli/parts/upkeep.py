"""What a command that has deleted much does for the store afterwards."""

from __future__ import annotations

from pathlib import Path

from backend.cli.console import console, size_in_words
from backend.cli.parts.progress import bars


def compact_if_due(store: str) -> None:
    """Compact a store in a folder where it has grown enough by records that are no more, and say so."""
    from backend.store.errors import StoreError
    from backend.store.maintenance.compaction import compact_if_grown

    if "://" in store:
        return
    try:
        with bars() as shown:
            done = compact_if_grown(Path(store), shown.progress)
    except StoreError as error:  # what the command was asked for is done
        console.print(f"note: {error}", soft_wrap=True)
        return
    if done is not None:
        console.print(
            f"compacted {store}, which had grown by deleted records: {size_in_words(done.before)} before, "
            f"{size_in_words(done.after)} now",
            soft_wrap=True,
        )
