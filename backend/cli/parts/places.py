"""The options that say where runs lie, for commands that need no configuration, whose schema takes its time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StoreOption = Annotated[str, typer.Option("--store", help="Folder of the store, or ws:// of a SurrealDB server.")]
RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that holds a folder for each run.")]
