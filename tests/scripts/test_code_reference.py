"""The pages that are made from the source have what the code has."""

from __future__ import annotations

import re
from dataclasses import fields

import numpy as np

import cryptosentinel
from backend.store.records import Record
from scripts.code_reference import api_page, metrics_page, records_page
from simulator.backtest import metrics


def test_every_public_name_has_its_words() -> None:
    page = api_page(vars(cryptosentinel)["_PLACES"])
    sections = dict(zip(*[iter(re.split(r"^## (\w+)\n", page, flags=re.MULTILINE)[1:])] * 2, strict=True))
    assert set(sections) == set(dir(cryptosentinel))
    assert [name for name, text in sections.items() if len(text.split()) < 4] == []


def test_every_metric_is_named() -> None:
    flat = metrics.compute(np.full(3, 100.0), metrics.DAY_MS, np.zeros((3, 1)), (), 0.0)
    page = metrics_page()
    assert [name for name in flat if not re.search(rf"\b{name}\b", page)] == []


def test_every_table_has_its_fields() -> None:
    page = records_page()
    sections = dict(zip(*[iter(re.split(r"^## (\w+)\n", page, flags=re.MULTILINE)[1:])] * 2, strict=True))
    records = {kind.table: kind for kind in Record.__subclasses__()}
    assert set(sections) == set(records)
    for table, kind in records.items():
        names = {item.name for item in fields(kind)} - {"run"}
        assert set(re.findall(r"^\| `(\w+)` \|", sections[table], re.MULTILINE)) == names, table
