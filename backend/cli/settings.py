"""`cryptosentinel config`: the settings of a configuration, each with its meaning."""

from __future__ import annotations

from rich.table import Table

from backend.cli.console import console
from backend.cli.options import ConfigOption, SetOption
from backend.config.load import describe, load_config
from backend.config.schema import Config


def show_config(config: ConfigOption = "demo", set_: SetOption = None) -> None:
    """Show every setting of a configuration with its meaning."""
    print_config(load_config(config, set_ or []))


def print_config(config: Config) -> None:
    """Print every setting of a configuration with its meaning."""
    values = config.to_dict()
    table = Table("key", "value", "meaning", title="configuration", title_justify="left")
    for entry in describe():
        value: object = values
        for part in entry.key.split("."):
            assert isinstance(value, dict)
            value = value[part]
        table.add_row(entry.key, str(value), entry.meaning)
    console.print(table)
