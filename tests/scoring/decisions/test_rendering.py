"""Templates of checkpoints are rendered as transformers renders them, and can neither loop for ever nor fill memory."""

from __future__ import annotations

import json

import pytest
from transformers.decision.template_utils import DECISION_PROMPT
from transformers.utils.chat_template_utils import _compile_jinja_template

from scoring.decisions.rendering import MOST_STEPS, STEPS_OF_OPTION, Rendering, RenderingError
from scoring.tokenizing.control_tokens import END, START

QUESTION = {
    "type": "choice",
    "instructions": {"é": [1, None]},
    "options": ["a", "b"],
    "labels": ["A", "B"],
    "descriptions": [None, "x"],
}
DOUBLED = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}%{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        DECISION_PROMPT,
        "{% for key, value in state.items() %}{{ loop.index }}{{ key ~ value }}{% if loop.last %}{% break %}{% endif %}"
        "{% endfor %}",
        "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice(twice(state.a)) }}{{ '%s-%d' % ('a', 3) }}",
        "{% set x %}  {{ state.a | upper }}{% endset %}[{{ x | trim }}] {{ 'a{}'.format(1) }} {{ [1, 'é'] }} {{ 6 }}",
        "{% generation %}{{ state | tojson(indent=2) }}{% endgeneration %}{{ state.a.split(' ')[-1] }}",
        "{{ dict(a=1) }}{{ 'x' * 3 }}{{ state.missing }}{{ state.a is string }}{{ [3, 1] | sort | join(',') }}",
    ],
)
def test_a_template_writes_what_transformers_writes(source: str) -> None:
    values = {"state": {"a": "one two", "b": "日本"}, "question": QUESTION}
    assert Rendering(source).render(values) == _compile_jinja_template(source).render(**values)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", "takes too long"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        (DOUBLED.replace("%{", "{% set ns.x = ns.x ~ ns.x %}{", 1), "more than"),
        (DOUBLED.replace("%{", "{% set ns.x = ns.x + ns.x %}{", 1), "more than"),
        (DOUBLED.replace("%{", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{", 1), "more than"),
        (DOUBLED.replace("%{", "{% set ns.x = [ns.x, ns.x] | join %}{", 1), "more than"),
        (DOUBLED.replace("%{", "{% set ns.x = ns.x.replace('a', 'aa') %}{", 1), "more than"),
        ("{{ 'a' * 100000000 }}", "more than"),
        ("{{ [1] * 100000000 }}", "more than"),
        ("{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "more than"),
        ("{{ 10 ** 1000 }}", "not allowed"),
        ("{{ 'a'.center(1000000000) }}", "too large"),
        ("{{ 'a' | indent(1000000000) }}", "too large"),
        ("{{ '%1000000000d' % 1 }}", "how wide"),
        ("{{ '%*d' % (1000000000, 1) }}", "how wide"),
        ("{{ '{:1000000000}'.format(1) }}", "how wide"),
        ("{{ '{:{}}'.format(1, 1000000000) }}", "too large"),
        ("{{ '%1000000000d' | format(1) }}", "how wide"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% include 'other' %}", "no loader"),
        ("{{ raise_exception('not so') }}", "not so"),
        ("{{ state.a", "can't be read"),
        ("{{ ().__class__.__base__.__subclasses__() }}", "unsafe|undefined"),
    ],
)
def test_a_template_that_takes_too_much_or_fails_is_an_error(source: str, reason: str) -> None:
    with pytest.raises(RenderingError, match=reason):
        Rendering(source).render({"state": {"a": "b"}})


@pytest.mark.parametrize("options", [0, 10])
def test_a_template_may_take_many_steps_and_more_for_each_option_but_not_more(options: int) -> None:
    source, most = "{% for i in a %}{% endfor %}x", MOST_STEPS + options * STEPS_OF_OPTION
    assert Rendering(source).render({"a": range(most - 1)}, options) == "x"
    with pytest.raises(RenderingError, match="takes too long"):
        Rendering(source).render({"a": range(most + 1)}, options)


def test_a_template_is_told_the_same_day_every_day() -> None:
    assert Rendering("{{ strftime_now('%d %b %Y') }}").render({}) == "26 Jul 2024"


def test_marks_within_lists_and_objects_are_still_there_when_a_template_writes_these() -> None:
    marked = f"{START}<|im_end|>{END}"
    for source in ("{{ state }}", "{{ state ~ '' }}", "{{ state | string }}", "{{ '%s' % (state,) }}"):
        found = Rendering(source).render({"state": [{"a": marked}]})
        assert marked in found, source
    assert marked in Rendering("{{ state | tojson }}").render({"state": [marked]})


def test_what_a_template_reads_and_says_is_known() -> None:
    rendering = Rendering("{% set a = 1 %}<|x|>{{ a ~ '<|y|>' }}{{ question }}{% for q in questions %}{% endfor %}")
    assert {"question", "questions"} <= rendering.variables
    assert "a" not in rendering.variables
    assert {"<|x|>", "<|y|>"} <= set(rendering.literals.split("\0"))
    assert json.dumps(rendering.literals)
