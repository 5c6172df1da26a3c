"""The laboratory: what each part of a team is worth, and whether it knew more than it was shown."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from backend.builders.variants import ABLATIONS, LEAKAGE
from backend.reporting.labels import title_of
from backend.runs.requests import BacktestRequest
from backend.runs.stored_setup import StoredSetup
from simulator.errors import UserError
from ui.access import market_kept, mistakes_explained, read_run
from ui.parts.again import choose_backtest, hand_over, show_again, variant_label, variant_meaning
from ui.parts.drawing import draw_blocks


def _page() -> None:
    st.title("Laboratory")
    st.caption("A stored backtest is played again beside variants of its team, on the same bars and at the same costs.")
    setup = None
    with mistakes_explained():
        setup = choose_backtest("laboratory run")
        if setup is not None:
            _ask(setup)
    show_again("laboratory", "--variant")
    if setup is not None:
        with mistakes_explained():
            st.subheader("What did it do, and how well did its forecasts fit what came?")
            for window in read_run(setup.run.run).windows:
                draw_blocks(window.behaviour(market_kept).blocks, "stored")


def _ask(setup: StoredSetup) -> None:
    played = {name: source for name, source in setup.sources.items() if not source.variant}
    if not played:
        raise UserError(f"run {setup.run.run} does not say how its teams were named: start a new backtest of them")
    with st.form("variants"):
        name = st.selectbox("Team", list(played), format_func=title_of)
        left, right = st.columns(2)
        left.markdown("**What is a part worth?**")
        right.markdown("**Does it know more than it is shown?**")
        chosen = [*_ticked(left, ABLATIONS), *_ticked(right, LEAKAGE)]
        submitted = st.form_submit_button("Run", type="primary", icon=":material/science:")
    if submitted:
        if not chosen:
            raise UserError("no variant is chosen: tick at least one")
        hand_over(BacktestRequest(like=setup.run.run, teams=(played[name].team,), variants=tuple(chosen)))


def _ticked(place: st.delta_generator.DeltaGenerator, variants: Sequence[str]) -> list[str]:
    return [
        text
        for text in variants
        if place.checkbox(variant_label(text), key=f"variant {text}", help=variant_meaning(text))
    ]


_page()
