"""The arena: teams, models and strategies on the same window at the same costs, with the price of their thinking."""

from __future__ import annotations

import streamlit as st

from backend.reporting.labels import title_of
from backend.runs.requests import BacktestRequest
from backend.runs.stored_setup import StoredSetup
from simulator.errors import UserError
from ui.access import mistakes_explained, read_run
from ui.parts.again import choose_backtest, hand_over, known_teams, show_again
from ui.parts.drawing import draw_blocks
from ui.parts.setting_fields import engine_fields

_MOST = 8


def _page() -> None:
    st.title("Arena")
    st.caption("Teams, models and strategies on the same bars at the same costs. Each is compared with the first.")
    setup = None
    with mistakes_explained():
        setup = choose_backtest("arena run")
        if setup is not None:
            _ask(setup)
    if not show_again("arena", "--like") and setup is not None and len(setup.sources) > 1:
        with mistakes_explained():
            st.subheader("Who competed in this backtest")
            for against in filter(None, (window.against() for window in read_run(setup.run.run).windows)):
                draw_blocks(against.blocks, "stored")


def _ask(setup: StoredSetup) -> None:
    offered = list(dict.fromkeys([*setup.teams, *known_teams()]))
    with st.form("arena"):
        teams = st.multiselect(
            "Who competes", offered, default=offered[:2], format_func=title_of, accept_new_options=True,
            max_selections=_MOST, help="Write another: the folder of a team, a recording, your own strategy as "
            "module:Class, or model=NAME for a model that was not trained here, such as model=gpt-5-mini.",
        )  # fmt: skip
        engine = engine_fields(setup.config)
        submitted = st.form_submit_button("Run", type="primary", icon=":material/trophy:")
    if submitted:
        if len(teams) < 2:
            raise UserError("a comparison needs two: choose another team or strategy")
        engine.check(teams)
        hand_over(BacktestRequest(like=setup.run.run, teams=tuple(teams), overrides=tuple(engine.overrides)))


_page()
