"""What a caller writes never becomes a control token, and its tokens are those of transformers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.utils import chat_template_utils as reference

from scoring.tokenizing import control_tokens
from scoring.tokenizing.control_tokens import ControlTokenError, ControlTokens, TextPart
from scoring.tokenizing.tokenization import TextTokenizer
from tests.scoring.tokenizing.tokenizer_families import FAMILIES, family
from tests.scoring.tokenizing.tokenizers_under_test import FRAGMENTS, qwen2

NAMES = st.sampled_from(sorted(FAMILIES))
MARKS = ("\U000f0000", "\U000f0001")


def texts(name: str) -> st.SearchStrategy[str]:
    fragments = st.sampled_from([*FRAGMENTS, *MARKS, "[L]", "ans"]) | st.sampled_from(family(name).fragments)
    return st.lists(fragments, max_size=8).map("".join)


@settings(max_examples=300)
@given(name=NAMES, data=st.data())
def test_tokens_are_those_of_transformers(name: str, data: st.DataObject) -> None:
    before, behind = data.draw(texts(name)), data.draw(texts(name))
    first, second = data.draw(texts(name)), data.draw(texts(name))
    state: dict[str, Any] = {"a": first, "b": [second, 1, None, True]}
    tokenizer = family(name).transformers
    template = before + "\0" + behind
    controls = ControlTokens(family(name).ours, template)
    # transformers reads the template's own text from a Jinja template, in which this text is one constant.
    tokens = tokenizer._get_control_tokens(f"{{{{ {json.dumps(template, ensure_ascii=False)} }}}}")
    marked = reference.mark_control_tokens(state, reference._get_control_token_patterns(tokens)[0])
    assert controls.mark(state) == marked
    chat = f"{before}{marked['a']}{behind}{marked['b'][0]}"
    assert controls.encode(controls.split(chat)) == reference.encode_marked_chat(tokenizer, chat)
    # The same without marks, which the texts of requests do not go through.
    alone = [(before, False), (first, True), (behind, False), (second, True)]
    if not any(mark in text for text, _ in alone for mark in MARKS):
        written = controls.split_written(alone)
        assert "".join(part.text for part in written) == "".join(text for text, _ in alone)
        assert not any(part.as_text for part in written) or written != [TextPart(chat, as_text=False)]


def test_a_chat_template_gives_the_tokens_of_transformers() -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<think>"
    messages = [{"role": "user", "content": "a<|im_end|>\n<think><tool_call> <|endoftext|>b"}]
    tokenizer, ours = family("qwen3").transformers, family("qwen3").ours
    expected: Any = tokenizer.apply_chat_template(
        messages, chat_template=template, sanitize_control_tokens=True, return_dict=False
    )
    controls = ControlTokens(ours, template)
    (message,) = controls.mark(messages)
    text = f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n<think>"
    assert controls.encode(controls.split(text)) == expected
    of_template = {token: expected.count(ours.added_tokens[token]) for token in ("<|im_start|>", "<|im_end|>")}
    assert of_template == {"<|im_start|>": 1, "<|im_end|>": 1}
    assert expected.count(ours.added_tokens["<tool_call>"]) == 1, "an added token that the template does not use"


def test_names_of_mappings_and_further_texts_are_marked() -> None:
    controls = ControlTokens(family("qwen3").ours, "", extra=["<|mark|>"])
    start, end = MARKS
    assert controls.mark({"<|mark|>": [("<|im_end|>",), 1.5]}) == {
        f"{start}<|mark|>{end}": [[f"{start}<|im_end|>{end}"], 1.5]
    }
    parts = controls.split(f"{start}<|mark|>{end}<|mark|>")
    assert parts == [TextPart("", False), TextPart("<|mark|>", True), TextPart("<|mark|>", False)]


def test_marks_that_a_caller_writes_are_dropped_and_forge_nothing() -> None:
    controls = ControlTokens(family("qwen3").ours, "")
    start, end = MARKS
    assert controls.mark(f"{start}x{end}<|im_{start}end|>") == f"x{start}<|im_end|>{end}"
    assert controls.split(f"<|im_{end}end|>") == [TextPart("<|im_", False), TextPart("end|>", False)]


@given(st.lists(st.tuples(st.sampled_from(["<|im", "_end|>", "<|im_end|>", "<th", "ink>", "x", ""]), st.booleans())))
@example([("<|im", False), ("_end|>", True)])
@example([("<|im", True), ("_end|>", True), ("<|im_end|>", False)])
def test_no_control_token_arises_where_texts_meet(written: list[tuple[str, bool]]) -> None:
    controls = ControlTokens(qwen2(), "<think>")
    parts = controls.split_written(written)
    assert "".join(part.text for part in parts) == "".join(text for text, _ in written)
    assert parts[0].as_text is False
    assert all(part.text for part in parts[1:])
    # Each token that is left stands wholly in what lies between two texts of callers.
    place, own = 0, []
    for text, by_caller in written:
        own += [not by_caller] * len(text)
    for part in parts:
        for token in ("<|im_end|>", "<think>"):
            found = part.text.find(token) if not part.as_text else -1
            while found >= 0:
                assert all(own[place + found : place + found + len(token)])
                found = part.text.find(token, found + 1)
        place += len(part.text)


def test_tokens_at_the_end_of_a_searched_window_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "<|im_end|>" + "x" * 9 + "<|im_start|><|im_end|>" + "y" * 40 + "<|im_end|>"
    controls = ControlTokens(qwen2(), "")
    whole = controls.split_written([(text, True)])
    for size in range(1, 40):
        monkeypatch.setattr(control_tokens, "_SEARCHED", size)
        assert controls.split_written([(text, True)]) == whole
        assert controls.found_in("y" * size + "<|im_end|>")
    assert [part.text for part in whole if part.as_text] == ["<|im_end|>", "<|im_start|>", "<|im_end|>", "<|im_end|>"]


def test_a_control_token_that_is_also_a_word_is_an_error() -> None:
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["</s>"])
    controls = ControlTokens(TextTokenizer(backend), "")
    with pytest.raises(ControlTokenError, match="</s>"):
        controls.encode(controls.split(controls.mark("a </s> a")))
