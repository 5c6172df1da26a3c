"""The page's server: `python -m ui.server [OPTION...]`, with the options of `streamlit run`.

What takes seconds is done before it answers, so that a first visit does not wait for it: libraries are imported, the
first figure is drawn, and the table of runs and the newest run are read.
"""

from __future__ import annotations

import ast
import gc
import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
_STORE_SECONDS = 8.0  # for which the server waits for what is in the store; a store that answers late is read beside

_LATER = ("paper",)  # pages that need the libraries of models and exchanges, which take long: they wait for their visit
# What is imported when a page is first drawn; a version of Streamlit that has not one of them needs it not.
_BEHIND = ("pyarrow.pandas_compat", "streamlit.emojis", "streamlit.material_icon_names")
# After each drawing Streamlit looks through all objects of the process, which are some millions here, and answers
# nobody meanwhile; pages that follow something are drawn each second. Python's own collector does what is needed.
_OPTIONS = ("--runner.postScriptGC=false",)

_log = logging.getLogger(__name__)


def main(options: Sequence[str]) -> None:
    """Serve until a signal ends it."""
    print("The page is made ready for its first visit. This takes some seconds.", flush=True)
    for name in [*needed_modules(), *filter(find_spec, _BEHIND)]:
        import_module(name)
    reading = threading.Thread(target=_read, name="what the first visit needs", daemon=True)
    reading.start()
    reading.join(_STORE_SECONDS)
    from streamlit.web import cli

    gc.collect()
    gc.freeze()  # what is there now stays, so that the collector need not look at it again
    cli.main(["run", str(HERE / "app.py"), *_OPTIONS, *options], prog_name="streamlit")


def needed_modules() -> list[str]:
    """All that the pages import but those of `_LATER`, in order of name."""
    paths = [path for path in (HERE / "views").glob("*.py") if path.stem not in _LATER]
    return sorted({name for path in paths for name in _imported(path)})


def _imported(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            yield node.module


def _read() -> None:
    """What the first visit shows, as far as it can be had: what is wrong with the store is said on the page."""
    from simulator.errors import UserError
    from ui.parts.ready import prepare

    try:
        prepare()
    except UserError as error:
        _log.info("the page begins without its store: %s", error)


if __name__ == "__main__":
    main(sys.argv[1:])
