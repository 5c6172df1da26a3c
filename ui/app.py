"""The page: `streamlit run ui/app.py`. Each entry of the menu is a file beside this one."""

import streamlit as st

st.set_page_config(page_title="CryptoSentinel", page_icon="🛰️", layout="wide")
st.navigation(
    [
        st.Page("runs.py", title="Runs", icon=":material/history:", default=True),
        st.Page("new_backtest.py", title="New backtest", icon=":material/play_arrow:"),
    ]
).run()
