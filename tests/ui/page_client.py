"""The pages by Streamlit's own test client: a working folder, a page of it, and what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from backend.cli.main import app as program
from backend.jobs.files import Job
from backend.runs.requests import BacktestRequest
from simulator.errors import UserError
from ui.parts.decision import part_key

APP = Path(__file__).resolve().parents[2] / "ui" / "app.py"


def open_page(page: str = "views/runs.py", **asked: str | list[str]) -> AppTest:
    """A page as it opens, with what its address asks for."""
    app = AppTest.from_file(str(APP), default_timeout=90)
    if page == "views/runs.py":
        for name, value in asked.items():
            app.query_params[name] = value
    app.run()
    if page == "views/runs.py":
        return app
    app.switch_page(page)
    for name, value in asked.items():
        app.query_params[name] = value
    return app.run()


def open_part(app: AppTest, part: str, window: str = "") -> AppTest:
    """The page with another part of a run open."""
    app.session_state[part_key(window)] = part
    app.run()
    assert not app.exception, app.exception
    return app


def field(elements: Any, label: str) -> Any:
    """The one element whose label holds these words."""
    [found] = [one for one in elements if label in one.label.replace("\\", "")]
    return found


def address(app: AppTest, name: str) -> list[str]:
    """What the page's address says; the test client gives one value as it was set."""
    value = app.query_params.get(name, [])
    return [value] if isinstance(value, str) else list(value)


def look_at(app: AppTest, part: str) -> None:
    """Choose what is shown of a training."""
    field(app.segmented_control, "What to look at").set_value(part).run()


def words(app: AppTest) -> str:
    """All that the page says in words."""
    kinds = (app.title, app.subheader, app.markdown, app.caption, app.text, app.info, app.warning, app.success)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def asked_of(job: Job) -> BacktestRequest:
    """What the command of a job asks for, as the command line reads it."""
    read: list[BacktestRequest] = []

    def stop(self: BacktestRequest) -> None:
        read.append(self)
        raise UserError("read")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BacktestRequest, "check", stop)
        with pytest.raises(UserError, match="read"):
            program(list(job.request.command), standalone_mode=False)
    return read[0]
