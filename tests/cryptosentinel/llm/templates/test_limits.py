"""A chat template comes with a model, so it is anybody's program: it takes no more than its limits."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from cryptosentinel.llm.templates import limits
from cryptosentinel.llm.templates.choose import described_format
from scripts.template_table import tokenizer_for
from simulator.errors import UserError

PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
LOOP = "{% for i in range(9999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = "{% set ns = namespace(x='abcdefgh') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
HOSTILE = {
    LOOP: "takes more than 1 seconds",
    "{% macro again(n) %}{% for i in range(3) %}{{ again(n + 1) if n < 40 }}{% endfor %}{% endmacro %}{{ again(0) }}": (
        "takes more than 1 seconds"
    ),
    DOUBLED: "takes more than 512 MB",
    "{{ ('a' | center(30000)) | replace('a', 'b' | center(30000)) | replace(' ', 'c' | center(90000)) }}": (
        "takes more than 512 MB"
    ),
    "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}": "calls itself",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}": "calls itself",
    "{% for m in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}": "calls itself",
    "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}": "calls itself",
    "{{ " + "not " * 5_000 + "1 }}": "calls itself",
    "{{ messages" + "[0]" * 5_000 + " }}": "calls itself",
    "{% for a in messages %}" * 30 + "{% endfor %}" * 30: "calls itself",
    "{% if messages %}" * 2_000 + "{% endif %}" * 2_000: "calls itself",
    "{{ 9 ** 9 ** 9 ** 9 }}": "raises to a power",
    "{{ 'a' * 99999999999 }}": "multiplies",
    "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}": "multiplies",
}


@pytest.mark.parametrize("start", HOSTILE)
def test_a_template_that_takes_too_much_is_refused_in_a_sentence(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SECONDS", 1.0 if "seconds" in HOSTILE[start] else 60.0)  # however slow the machine is
    monkeypatch.setattr(limits, "MEGABYTES", 512)
    before = sys.gettrace(), resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(UserError, match=f"the chat template cannot be used: it {HOSTILE[start]}") as refused:
        described_format(tokenizer_for(start + PLAIN), tmp_path)
    assert "\n" not in str(refused.value)
    assert (sys.gettrace(), resource.getrlimit(resource.RLIMIT_AS)) == before


def test_what_templates_do_is_within_the_limits(tmp_path: Path) -> None:
    """Small factors, loops over messages and their letters, the marks of transformers."""
    harmless = (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% for c in m.content %}{% set ns.n = ns.n + 2 * 3 %}"
        "{% if ns.n > 9 %}{% break %}{% endif %}{% endfor %}{% endfor %}"
        "{{ '-' * 8 }}{% generation %}{% endgeneration %}"
    )
    assert described_format(tokenizer_for(harmless + PLAIN), tmp_path)[0] is not None
