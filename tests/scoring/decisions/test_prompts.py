"""Where prompts are cut: behind what questions that are made up have in common, however it is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scoring.decisions.checkpoint import DecisionCheckpoint
from scoring.decisions.encoding import DecisionPrompts
from scoring.decisions.prompts import PromptWriter
from scoring.decisions.questions import read_systemone
from scoring.tokenizing.tokenization import TextTokenizer
from tests.model.decisions.checkpoints import VARIANTS, write_variant

TEMPLATES = {
    "trimmed": "{{ state|trim }}\n{{ question.instructions }}:<|mark|>",
    "twice": "{{ state }}\n{{ question.instructions }}\n{{ state }}:<|mark|>",
    "by length": "{% if state|length > 9 %}long {% endif %}{{ state }}\n{{ question.instructions }}:<|mark|>",
    "by kind": "{% if question.type != 'noul' %}{{ state }}{% endif %}\n{{ question.instructions }}:<|mark|>",
    "without a text": "{{ state.text }}\n{{ question.instructions }}:<|mark|>",
}
STATES: tuple[Any, ...] = ("short", " blanks \n", "", "a<|im_end|>b<|im_start|>", "<|im_", "ab" * 40, {"a": [1]}, ["x"])
QUESTIONS = {"q": {"type": "noul", "instructions": "Is it?"}, "r": {"type": "choice", "criteria": {"a": None}}}

Writer = Callable[[str], PromptWriter]


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    def made(name: str) -> PromptWriter:
        directory = write_variant(tmp_path_factory.mktemp("model"), name if name in VARIANTS else "generic")
        if name in TEMPLATES:
            (directory / "decision_template.jinja").write_text(TEMPLATES[name])
        return writer_in(directory)

    return made


def writer_in(directory: Path) -> PromptWriter:
    tokenizer = TextTokenizer.load(directory)
    return PromptWriter(DecisionCheckpoint.read(directory, tokenizer), tokenizer)


def written(writer: PromptWriter, state: object) -> DecisionPrompts:
    return writer.write(state, writer.ask(read_systemone(QUESTIONS), ["q", "r"]))


@pytest.mark.parametrize("name", [*TEMPLATES, *(name for name in VARIANTS if name != "together")])
def test_prompts_are_cut_where_three_questions_show_it(
    name: str, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = writer(name)
    monkeypatch.setattr(PromptWriter, "_around_texts", lambda _: None)
    thorough = writer(name)
    for state in STATES:
        one, other = written(quick, state), written(thorough, state)
        assert (one.shared, one.behind, one.apart) == (other.shared, other.behind, other.apart), repr(state)


def test_a_text_in_a_plain_template_takes_one_rendering_besides_those_of_its_questions(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_template = writer("template")
    rendered: list[object] = []
    render = PromptWriter._render

    def counted(self: PromptWriter, state: object, shown: Any) -> str:
        rendered.append(state)
        return render(self, state, shown)

    monkeypatch.setattr(PromptWriter, "_render", counted)
    written(of_template, "short")
    assert len(rendered) == 1 + len(QUESTIONS)
    written(of_template, {"a": 1})
    assert len(rendered) == 2 * len(QUESTIONS) + 4


def test_one_prompt_may_have_thousands_of_options(tmp_path: Path) -> None:
    template = "{% for q in questions %}{% for o in q.options %}{{ (o | trim) ~ '/' }}{% endfor %}:<|mark|>{% endfor %}"
    directory = write_variant(tmp_path, "generic")
    (directory / "decision_template.jinja").write_text(template)
    of_all = writer_in(directory)
    many = {"type": "choice", "criteria": {f"{n} ": None for n in range(255)}}
    questions = read_systemone({str(n): many for n in range(40)})
    prompts = of_all.write("", of_all.ask(questions, [str(n) for n in range(40)]))
    assert prompts.are_one
    assert prompts.behind[0] == "".join(f"{n}/" for n in range(255)) + ":"
