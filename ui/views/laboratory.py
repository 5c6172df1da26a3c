"""The laboratory: what each part of a team is worth, and whether it knew more than it was shown."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from backend.builders.variants import ABLATIONS, LEAKAGE, Variant
from backend.reporting.labels import title_of
from backend.runs.requests import BacktestRequest
from backend.runs.stored_setup import StoredSetup
from simulator.errors import UserError
from ui.access import escape_markdown, market_kept, mistakes_explained, read_run
from ui.parts.again import choose_backtest, hand_over, show_again
from ui.parts.drawing import draw_blocks

_MEANINGS = {
    "without": "It is not there; the manager has its tools itself. Worse without it: it was worth something.",
    "scripted": "Rules answer in its place. As good with rules: the model has learnt no more than they say.",
    "no_veto": "RiskAnalyst is asked, and its verdict caps nothing. Better so: the verdicts cost money here.",
    "unmasked": "The team reads the real names and dates. Better so: it may remember what happened.",
    "shuffled_news": "Each headline's words at another headline's time. As good so: it did not read the news.",
    "shuffled_days": "The window's days in another order, with their news. As good on the real days only: it may "
    "remember them, or trade trends of several days.",
    "altered_future": "At each decision everything later is other data; orders fill at the real prices. Other than "
    "before: something of it reads the future. Rules do the same to the bit; a sampled model of a provider does not.",
}


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
    return [text for text in variants if place.checkbox(_label(text), key=f"variant {text}", help=_meaning(text))]


def _label(text: str) -> str:
    words = Variant.parse(text).suffix.removeprefix(", ")
    return escape_markdown(words[:1].upper() + words[1:])


def _meaning(text: str) -> str:
    return _MEANINGS[Variant.parse(text).kind]


_page()
