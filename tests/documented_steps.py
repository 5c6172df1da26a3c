"""What a test does with each command that the pages show: it is run, first or in a part, or a reason stands why not.

A page writes RUN or DIR where a reader puts something of their own. Here `{train}` is the id of the newest run of that
kind, `{backtest:2}` of the one before the newest, `{bars}` a folder of recorded bars.
"""

# ruff: noqa: E501 (commands are as long as they are)

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def as_options(preset: str, without: str = "") -> str:
    """The settings of a preset as options; without a section."""
    document = tomllib.loads((ROOT / "configs" / f"{preset}.toml").read_text(encoding="utf-8"))
    return " ".join(
        f"-s {section}.{key}={value}"
        for section, keys in document.items()
        for key, value in keys.items()
        if section != without
    )


@dataclass(frozen=True)
class Step:
    """A command as a page shows it, and how it is run here."""

    shown: str
    put: dict[str, str] = field(default_factory=dict)  # what stands in the page -> what stands for that here
    more: str = ""  # options behind it, so that it takes seconds
    code: int = 0  # of its end
    says: str = ""  # in what it prints
    keep: str = ""  # a name by which later steps call its run, as `{name}`
    lasts: bool = False  # it goes on until it is ended; the steps after it need it


# A training of seconds: that of the preset `quick`, with the market's settings and without.
QUICK = as_options("quick")
QUICK_TEAM = as_options("quick", without="market")
SHORT_SFT = " ".join(f"-s sft.{one}" for one in ("states=16", "steps=5", "score_states=4"))
DAYS = {"--start 2021-06-10": "--start 2021-06-28"}
RECORDED = {"DIR": "{bars}"}
LAST_TRAINING = {
    "train-20240131-120000-250": "{train}",
    "train-20250131-120000": "{train}",
    "runs/train-…": "runs/{train}",
}
SESSION = {"SESSION": "{paper}"}
ANOTHER_TEAM = {"runs/TEAM": "runs/demo"}
REPLAYED = {"RUN": "{scripted}"}

# These come first. The parts below need what they leave: a market, a demo, a training, three backtests.
FIRST = (
    Step("cryptosentinel --version", says="cryptosentinel 1"),
    Step("python -m cryptosentinel", more="--help", says="Begin here"),
    Step("cryptosentinel config", says="market.bars"),
    Step("cryptosentinel data sample --out data"),
    Step(".venv/bin/cryptosentinel demo --config quick", {".venv/bin/": ""}, says="report: runs/"),
    Step("cryptosentinel backtest", says="scripted", keep="scripted"),
    Step("cryptosentinel backtest --team donchian_breakout", says="donchian_breakout", keep="donchian"),
    Step("cryptosentinel backtest --team ema_cross:fast=10,slow=50", says="ema_cross", keep="ema"),
    Step("cryptosentinel train --config quick", says="the team is in runs/train-"),
)  # fmt: skip

# Every part can be run without the others.
PARTS: dict[str, tuple[Step, ...]] = {
    "data": (
        Step("cryptosentinel data list sample", says="AAAUSDT"),
        Step("cryptosentinel data check sample"),
        Step("cryptosentinel data check DIR", RECORDED),
        Step("cryptosentinel data check DIR [--symbols A,B] [--timeframe 1h]", {**RECORDED, "A,B": "BTCUSDT,ETHUSDT"}),
        Step("cryptosentinel data import TREE --out DIR", {"TREE": "vision", "DIR": "imported/tree"}, says="BTCUSDT"),
        Step("cryptosentinel data import SRC --out DIR [--symbols A,B] [--instrument spot]",
             {"SRC": "vision", "DIR": "imported/spot", "A,B": "BTCUSDT"}, says="BTCUSDT"),
        Step("cryptosentinel data import data --out bars", {"data --": "vision --"}, says="BTCUSDT"),
        Step("cryptosentinel data import BTCUSDT-1h.csv --out bars", says="BTCUSDT"),
        Step("cryptosentinel data import BTCUSDT-1h.csv --out bars --venue mine", says="BTCUSDT"),
        Step("cryptosentinel backtest --data BTCUSDT-1h.csv --team hold", says="was imported into runs/data/"),
        Step("cryptosentinel backtest --data bars/mine --team ema_cross", says="report: runs/"),
        Step("cryptosentinel backtest --data bars/mine --team my_module:MyStrategy", says="report: runs/"),
        Step("cryptosentinel data import Binance_BTCUSDT_1h.csv --out bars", says="BTCUSDT"),
        Step("cryptosentinel data import BTC-USD.csv --out bars", says="BTCUSD"),
        Step("cryptosentinel data import user_data/data --out bars", says="BTCUSDT"),
        Step("cryptosentinel data import prices.csv --out bars --symbol BTCUSDT --timeframe 1h --venue mine --columns "
             "time=Date,open=Open,high=High,low=Low,close=Close,volume=Vol --time-format \"%d.%m.%Y %H:%M\" --time-zone "
             "Europe/Berlin --decimal ,", says="BTCUSDT"),
    ),
    "strategies": (
        Step("cryptosentinel backtest --team ema_cross --start 2021-06-01 --baselines hold", says="report: runs/"),
        Step("cryptosentinel backtest --team my_module:MyStrategy", says="no look-ahead"),
        Step("cryptosentinel backtest --team my_strategy:AboveMean --start 2021-06-01 --baselines hold", says="no look-ahead"),
        Step("cryptosentinel backtest --data DIR --symbols BTCUSDT --timeframe 1h --resample 4h", RECORDED),
        Step("cryptosentinel check lookahead --team sma_cross", says="no look-ahead"),
        Step("cryptosentinel check lookahead --team donchian_breakout --data DIR", RECORDED, says="no look-ahead"),
        Step("cryptosentinel check lookahead --team my_module:MyStrategy --data DIR --symbols BTCUSDT --timeframe 1h "
             "--resample 4h", RECORDED, says="no look-ahead"),
        Step("cryptosentinel check lookahead --team scripted --seed 3 --out report.json", says="no look-ahead"),
        Step("cryptosentinel check recursion --team sma_cross --warm-up 121,200,400,800"),
        Step("cryptosentinel check recursion --team my_module:MyStrategy --data DIR", RECORDED),
    ),
    "teams": (
        Step("cryptosentinel backtest --team sample --start 2026-10-26 --baselines hold", says="sample"),
        Step("cryptosentinel backtest --team sample", more="--start 2026-11-04", says="sample"),
        Step("cryptosentinel evaluate sample",
             more="-s evaluation.windows=2 -s evaluation.decisions_per_window=2 -s evaluation.states=8"),
        Step("cryptosentinel backtest --team runs/demo", more="--start 2020-07-17"),
        Step("cryptosentinel evaluate runs/demo", says="report: runs/"),
        Step("cryptosentinel backtest --team scripted,runs/demo", more="--start 2020-07-17"),
        Step("cryptosentinel backtest --data DIR --symbols BTCUSDT,ETHUSDT --timeframe 1h --resample 4h "
             "--start 2024-01-01 --end 2024-04-01 --team runs/demo",
             {**RECORDED, "2024-04-01": "2024-01-03"}),
        Step("cryptosentinel backtest --team sample --variant without:risk_analyst --start 2026-10-16 --baselines hold",
             {"2026-10-16": "2026-10-30"}, says="without RiskAnalyst"),
        Step("cryptosentinel runs compare backtest-…", {"backtest-…": "{backtest}"}),
        Step("cryptosentinel backtest --like RUN --variant without:risk_analyst,no_veto,shuffled_days",
             {"RUN": "{scripted}"}, says="report: runs/"),
        Step("cryptosentinel backtest --like RUN --team runs/demo,ema_cross", {"RUN": "{scripted}"}),
    ),
    "runs": (
        Step("cryptosentinel runs", says="backtest-"),
        Step("cryptosentinel runs RUN", REPLAYED, says="backtest-"),
        Step("cryptosentinel runs show RUN --decision 12", REPLAYED, says="decision 12"),
        Step("cryptosentinel runs compare RUN1 RUN2 RUN3", {"RUN1 RUN2 RUN3": "{scripted} {donchian} {ema}"}),
        Step("cryptosentinel runs replay RUN --decision 12 --answer market_analyst='{\"up\": 0.1, \"flat\": 0.1, \"down\": 0.8}'",
             REPLAYED),
        Step("cryptosentinel runs trials"),
    ),
    "training": (
        Step("cryptosentinel evaluate runs/train-…", LAST_TRAINING, says="report: runs/"),
        Step("cryptosentinel evaluate runs/train-20250131-120000", LAST_TRAINING, says="report: runs/"),
        Step("cryptosentinel evaluate runs/demo --data DIR --symbols BTCUSDT,ETHUSDT --timeframe 4h --set evaluation.windows=12",
             RECORDED, more="-s evaluation.decisions_per_window=2"),
        Step("cryptosentinel doctor RUN", {"RUN": "{train}"}),
        Step("cryptosentinel doctor train-20240131-120000-250", LAST_TRAINING),
        Step("cryptosentinel train --dry-run", says="memory of the trainer"),
        Step("cryptosentinel train --resume train-20250131-120000", LAST_TRAINING, says="the team is in"),
        Step("cryptosentinel train --config demo --set training.seed=5", more=QUICK),
        Step("cryptosentinel train --config demo --set training.stage2_steps=80 --set training.seed=5", more=QUICK),
        Step("cryptosentinel train --config my.toml"),
        Step("cryptosentinel train --config recorded_training --data DIR --symbols BTCUSDT,ETHUSDT --timeframe 1h", RECORDED,
             more=QUICK_TEAM),
        Step("cryptosentinel train --config demo --launch ray --workers 2", more=QUICK),
        Step("cryptosentinel train --config demo --launch ray --workers 2 --set training.shards=2", more=QUICK),
        Step("cryptosentinel sft --config demo --from scripted --out runs/sft", more=f"{QUICK} {SHORT_SFT}"),
        Step("cryptosentinel evaluate runs/sft", says="report: runs/"),
        Step("cryptosentinel train --config demo --set training.start_from=runs/sft", more=QUICK),
        Step("cryptosentinel models list"),
        Step("cryptosentinel models export runs/sft --to adapters"),
        Step("cryptosentinel models export TEAM --to FOLDER --as FORM",
             {"TEAM": "sample", "FOLDER": "merged", "FORM": "merged"}),
    ),
    "experiments": (
        Step("cryptosentinel experiment run FILE --seeds 1-10", {"FILE": "experiments/mine.toml", "1-10": "1-2"}),
        Step("cryptosentinel experiment run experiments/FILE.toml", {"FILE": "mine"}),
        Step("cryptosentinel experiment run experiments/FILE.toml --seeds 1-10 --name longer --workers 4",
             {"FILE": "mine", "1-10": "1-3", "--workers 4": "--workers 2"}),
        Step("cryptosentinel experiment list", says="longer"),
        Step("cryptosentinel experiment show NAME", {"NAME": "longer"}),
    ),
    "paper": (
        Step("cryptosentinel paper run --data sample --team scripted --start 2021-06-10", DAYS),
        Step("cryptosentinel paper run --team buy.py:Buy --data sample --start 2021-06-10", {**DAYS, "buy.py:Buy": "hold"}),
        Step("cryptosentinel paper report SESSION", SESSION),
        Step("cryptosentinel train --from-paper SESSION --set training.start_from=runs/TEAM", {**SESSION, **ANOTHER_TEAM}, more=QUICK_TEAM,
             code=2, says="recorded too little to train on"),  # three days are
        Step("cryptosentinel jobs run -- paper run …", {"…": "--data data/synthetic --team scripted --start 2021-06-28"}),
        Step("cryptosentinel paper status", says="paper-"),
        Step("cryptosentinel paper status SESSION", SESSION),
        Step("cryptosentinel paper status SESSION --check", SESSION),
        Step("cryptosentinel paper stop SESSION", SESSION),
        Step("cryptosentinel paper resume SESSION", SESSION, code=2),
        Step("cryptosentinel paper kill SESSION", SESSION),
        Step("cryptosentinel paper demo", says="parity"),
    ),
    "store": (
        Step("cryptosentinel runs delete RUN", {"RUN": "{train}"}, more="--yes"),
        Step("cryptosentinel store check"),
        Step("cryptosentinel store backup FOLDER", {"FOLDER": "backup"}),
        Step("cryptosentinel store backup /backups/2026-11-27", {"/backups/": "backup-of-"}),
    ),
    "jobs": (
        Step("cryptosentinel jobs run -- train --config quick"),
        Step("cryptosentinel jobs list", says="train"),
        Step("cryptosentinel jobs show JOB", {"JOB": "{job}"}),
        Step("cryptosentinel jobs cancel JOB", {"JOB": "{job}"}),
        Step("cryptosentinel jobs run -- experiment run FILE", {"FILE": "experiments/mine.toml"}),
    ),
    "page": (
        Step("cryptosentinel ui", more="--port {page_port}", lasts=True),
        Step("CRYPTOSENTINEL_UI_TOKEN=... cryptosentinel ui", {"CRYPTOSENTINEL_UI_TOKEN=...": f"env CRYPTOSENTINEL_UI_TOKEN={'k' * 24}"},
             more="--port {own_port}", lasts=True),
        Step("cryptosentinel ui --no-token", more="--port {open_port}", lasts=True),
        Step("cryptosentinel ui --allow-plugins", more="--port {module_port}", lasts=True),
    ),
}  # fmt: skip

STEPS = (*FIRST, *chain.from_iterable(PARTS.values()))

# Words between backticks that name a command without saying what is to be given to it.
NAMES = (
    "cryptosentinel backtest --team",
    "cryptosentinel doctor",
    "cryptosentinel runs compare",
)

# Why a command is not run there.
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "asks an exchange, and the environment of a test has no network": (
        "cryptosentinel data download --exchange binance --market swap --symbols BTC/USDT,ETH/USDT --timeframe 1h,1m --start "
        "2024-01-01 --out bars/binance-swap",
        "cryptosentinel paper run --exchange binance --symbols BTC/USDT,ETH/USDT --timeframe 1m --decide-every 15",
    ),
    "asks a provider or a server of models, some with a key": (
        "cryptosentinel models try gpt-5-mini --provider openai",
        "cryptosentinel models try qwen3:8b --provider ollama",
        "cryptosentinel models try qwen3:8b --provider ollama --url http://192.168.1.7:11434/v1",
        "cryptosentinel models try my-model -s engine.kind=openai_api --url https://my.host/v1",
        "cryptosentinel backtest --team model -s engine.kind=openai -s engine.model=gpt-5-mini",
        "cryptosentinel backtest --team model=qwen3:8b,model=llama3:8b -s engine.kind=ollama",
        "cryptosentinel backtest --team model -s engine.kind=ollama -s engine.model=qwen3:8b --record tape.jsonl",
        "cryptosentinel backtest --team tape.jsonl",
    ),
    "needs weights from somebody else": ("cryptosentinel train --set training.start_from=theirs/team",),
    "needs weights from the model hub": (
        "cryptosentinel models pull Qwen/Qwen3-0.6B",
        "cryptosentinel models check models/Qwen--Qwen3-0.6B",
        "cryptosentinel backtest --team model -s engine.model=models/Qwen--Qwen3-0.6B",
        "cryptosentinel train --set training.base_model=Qwen/Qwen3-0.6B",
        "cryptosentinel sft --config smollm2 --from scripted --set training.base_model=models/smollm2 --out runs/smollm2-sft",
        "cryptosentinel train --config smollm2 --set training.start_from=runs/smollm2-sft",
    ),
    "needs vLLM or GPUs": (
        "cryptosentinel backtest --team runs/demo -s engine.kind=vllm -s engine.python=.venv-vllm/bin/python",
        "cryptosentinel evaluate theirs/team --data data/mine --set engine.kind=vllm",
        "CUDA_VISIBLE_DEVICES=0 cryptosentinel train --config qwen3_4b --set engine.gpu_share=0 --set "
        "engine.url=http://localhost:8000/v1",
        "CUDA_VISIBLE_DEVICES=1 vllm serve models/Qwen--Qwen3-4B --served-model-name base --enable-lora --max-loras 4 "
        "--max-lora-rank 32 --port 8000",
    ),
    "takes several machines": (
        "cryptosentinel train --config demo --launch ray --workers 4 --ray-address HOST:6379 --store wss://store.example "
        "--runs /shared/runs",
    ),
    "takes hours, with a file of the repository": (
        "cryptosentinel experiment run experiments/credit.toml",
        "cryptosentinel experiment run experiments/e2_knowledge.toml",
        "cryptosentinel experiment run experiments/e8_four_hours.toml",
        "cryptosentinel experiment run experiments/e8_nano.toml",
        "cryptosentinel experiment run experiments/outcome_share.toml",
        "cryptosentinel experiment run experiments/team_size.toml",
    ),
}

# The same for lines of other programs, by how they begin.
OTHER_PROGRAMS = {
    r"make\b": "a target of the repository",
    r"python -m (scripts|benchmarks)\.": "a program of the repository",
    r"python scripts/": "a program of the repository",
    r"pip\b": "installs, which the test does in its own way",
    r"(source|export|mkdir) ": "prepares the shell for the next line",
    r"docker ": "starts a container",
    r"systemctl ": "starts a service of the machine",
    r"python -m$": "a part of a command line",
    r"(\.venv/bin/)?tensorboard ": "a program of another package",
}


def group_of(line: str) -> str | None:
    """What is done with a line of the documentation: `run`, `name`, or the reason why it is not run; None where nothing
    says so."""
    if any(step.shown == line for step in STEPS):
        return "run"
    if line in NAMES:
        return "name"
    for reason, lines in ELSEWHERE.items():
        if line in lines:
            return reason
    return next((reason for begin, reason in OTHER_PROGRAMS.items() if re.match(begin, line)), None)
