"""`models try` and the README's commands for an endpoint, against a local server with answers of realistic length."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from backend.decisions.backtest_document import read_backtests
from backend.store.store import Store
from cryptosentinel.llm.endpoint.http import RequestCosts
from simulator.data.archive import write_market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.command_line import Run, program
from tests.mock_endpoint import MODEL, reply, serve
from tests.provider_servers import SERVERS, OpenAIKind

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "data" / "synthetic"
KEY = "sk-test-0123456789abcdef"


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    write_market(generate(SyntheticConfig(bars=260, seed=5, symbols=("AAAUSDT", "BBBUSDT"))), tmp_path / "made")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    return program(tmp_path, monkeypatch, capsys)


def test_a_model_is_tried_and_what_it_did_and_took_is_said(command: Run) -> None:
    with serve(SERVERS["openai, a model that thinks"]()) as endpoint:
        prices = f"budget.prices.{MODEL}=[2.0, 0.5, 8.0]"
        tried = command(
            "models", "try", MODEL, "--provider", "openai", "--url", endpoint.url, "--data", "made", "-s", prices
        )
    assert tried.code == 0, tried.err + tried.out
    for words in (
        "first contact: a sound call: ", "as a tool call; it ended with tool_calls", "takes no temperature",
        "consult_market_analyst {'symbol': 'C1'}", "submit_decision", "orders: AAAUSDT", "the team can trade with it",
    ):  # fmt: skip
        assert words in tried.out, tried.out
    # Three answers of the decision: 180, 70 and 30 tokens beside 700 of thoughts each.
    money = 3 * (500 * 2.0 + 1500 * 0.5) / 1e6 + (180 + 70 + 30 + 3 * 700) * 8.0 / 1e6
    assert "3 requests, 6,000 tokens read (4,500 from the cache), 2,380 sampled (2,100 of them thoughts)" in tried.out
    assert f"cost {money:,.4g}" in tried.out and KEY not in tried.out
    assert not Path("runs").exists()


def test_a_price_that_is_not_known_is_said(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.config.engine.is_loopback", lambda url: False)  # a host of somebody else
    with serve(SERVERS["openai"]()) as endpoint:
        tried = command("models", "try", MODEL, "--provider", "openai", "--url", endpoint.url, "--data", "made")
        played = command(
            "backtest", "--team", "model", "-s", "engine.kind=openai", "-s", f"engine.model={MODEL}", "-s",
            f"engine.url={endpoint.url}", "--data", "made", "--baselines", "none", "--start", "2020-02-01",
            "--end", "2020-02-03",
        )  # fmt: skip
    assert tried.code == 0 and "price unknown" in tried.out and "cost 0" not in tried.out, tried.out
    assert played.code == 0 and "the price is unknown" in played.out, played.out + played.err


def test_a_backtest_ends_before_it_costs_more_than_allowed(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cryptosentinel.llm.endpoint.http.PROGRAM_COSTS", RequestCosts())
    prices = f"budget.prices.{MODEL}=[2.0, 0.5, 8.0]"
    with serve(SERVERS["openai"]()) as endpoint:
        asked = ("-s", f"engine.url={endpoint.url}", "--data", "made", "-s", prices, "-s", "budget.max_cost=0.2")
        tried = command("models", "try", MODEL, "--provider", "openai", *asked)
        played = command(
            "backtest", "--team", "model", "-s", "engine.kind=openai", "-s", f"engine.model={MODEL}", *asked,
            "--baselines", "none", "--start", "2020-02-01", "--end", "2020-04-01",
        )  # fmt: skip
    assert tried.code == 0 and "may cost 0.2 in all (budget.max_cost)" in tried.out + tried.err
    assert "that is more than budget.max_cost = 0.2, where it would end" in tried.out, tried.out
    assert played.code == 2 and "of at most 0.2: allow more" in played.err, played.out + played.err
    assert "Traceback" not in played.err


def test_a_model_that_cannot_call_is_no_success(command: Run) -> None:
    talk = {"choices": [{"message": {"role": "assistant", "content": "I would rather talk."}, "finish_reason": "stop"}]}
    with serve(lambda body: reply(talk)) as endpoint:
        tried = command("models", "try", MODEL, "--provider", "vllm_chat", "--url", endpoint.url, "--data", "made")
    assert tried.code == 1
    assert "not the call that was asked for: I would rather talk." in tried.out
    assert "could not have traded" in tried.out and "no_call" in tried.out
    assert "try a model that calls tools" in tried.out and "--enable-auto-tool-choice" in tried.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--provider", "mistral"), "'mistral' is not a known engine"),
        (("--provider", "anthropic"), "ANTHROPIC_API_KEY, which should hold the endpoint's key, is not set"),
        ((), "there is no model folder"),
        (("--provider", "vllm_chat", "--url", "http://127.0.0.1:9/v1"), "cannot be reached"),
        (
            ("--provider", "openai"),
            "the price of 'nobody' at OpenAI is not known, so budget.max_cost = 5 cannot be kept",
        ),
    ],
)
def test_mistakes_are_found_before_anything_is_sent(
    command: Run, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], words: str
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    tried = command("models", "try", "nobody", *options, "--data", "made")
    assert tried.code == 2 and words in tried.err and KEY not in tried.err and "Traceback" not in tried.err


def test_a_local_model_can_be_tried(command: Run, nano: Path) -> None:
    tried = command("models", "try", str(nano), "--data", "made")
    assert tried.code in (0, 1) and "one decision:" in tried.out and "cost nothing" in tried.out, tried.err


def readme_commands() -> list[str]:
    """The lines of the README that ask an endpoint."""
    text = re.sub(r" +#.*", "", (ROOT / "README.md").read_text())
    return [line for line in text.splitlines() if line.startswith("cryptosentinel ") and "gpt-5-mini" in line]


def test_the_commands_of_the_readme_trade_on_the_shipped_sample(command: Run, tmp_path: Path) -> None:
    trial, backtest = (shlex.split(line)[1:] for line in readme_commands())
    assert trial[:2] == ["models", "try"] and backtest[0] == "backtest"
    brain = SERVERS["openai, a model that thinks"]()
    assert isinstance(brain, OpenAIKind)
    with serve(brain) as endpoint:
        there = ("-s", f"engine.url={endpoint.url}", "--data", str(SAMPLE))
        tried = command(*trial, *there)
        assert tried.code == 0 and "the team can trade with it" in tried.out, tried.out + tried.err
        played = command(*backtest, *there, "--baselines", "none", "--start", "2021-05-01", "--end", "2021-05-03")
        assert played.code == 0, played.err
    with Store.open(str(tmp_path / "runs" / "store")) as store:
        [run] = [one.run for one in store.runs()]
        [own] = [one.document for one in read_backtests(store, run)]
        assert len(own.symbols) == 4 and own.fills and own.metrics["trades"] >= 4
        assert own.inference is not None
        assert own.inference.engine["failures"] == 0 and own.inference.engine["reasoning_tokens"] > 0
        assert "of the tokens were thoughts" in played.out
