"""What runs the team: store, backtest runs, M-GRPO training, evaluation and the command line."""

from pathlib import Path

# The program's packages at the top, and the folder that they lie in. A wheel has one, and the others lie in that.
TOP_PACKAGES = ("backend", "cryptosentinel", "simulator", "ui") if __name__ == "backend" else ("cryptosentinel",)
PROGRAM_FOLDER = Path(__file__).resolve().parents[len(__name__.split("."))]
