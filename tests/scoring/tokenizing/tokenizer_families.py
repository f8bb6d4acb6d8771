"""Replicas of the supported families' tokenizers: the files of their repositories, with a small vocabulary.

Everything but the vocabulary is what is published: normaliser, pre-tokenizer, model options, post-processor, decoder,
flags of added tokens, ``tokenizer_config.json``, and of ``config.json`` what decides how transformers loads them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from scoring.tokenizing.tokenization import TextTokenizer
from tests.scoring.tokenizing.tokenizers_under_test import CONTRACTIONS, LLAMA3, QWEN2, corpus, split_by

QWEN35 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{CONTRACTIONS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{CONTRACTIONS}?",
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]
)
WORDS = ["Yes", "No", "yes", "no", "The answer is", "positive", "negative", "Answer:", "CamelCase", "/path//to/"]
Merges = list[tuple[str, str]]


@dataclass(frozen=True)
class Family:
    """A replica, written into a folder and loaded from there.

    texts: two more pieces to test with, which its added tokens or markers make awkward; bos: its id, or None.
    """

    directory: Path
    bos: int | None
    fragments: tuple[str, ...]

    @property
    def ours(self) -> TextTokenizer:
        return _ours(self.directory)

    @property
    def transformers(self) -> PreTrainedTokenizerBase:
        return _transformers(self.directory)


@cache
def _ours(directory: Path) -> TextTokenizer:
    return TextTokenizer.load(directory)


@cache
def _transformers(directory: Path) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    return tokenizer


def special(content: str) -> AddedToken:
    return AddedToken(content, special=True, normalized=False)


def plain(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, special=False, **{"normalized": False} | flags)


def write(
    directory: Path,
    tokenizer: Tokenizer,
    model_type: str,
    tokenizer_class: str,
    added: Sequence[AddedToken] = (),
    **options: Any,
) -> Path:
    """Return the files of a repository. added: further tokens, such as a fine-tuning adds."""
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    decoder = {
        str(number): {
            "content": token.content,
            "lstrip": token.lstrip,
            "normalized": token.normalized,
            "rstrip": token.rstrip,
            "single_word": token.single_word,
            "special": token.special,
        }
        for number, token in tokenizer.get_added_tokens_decoder().items()
    }
    config = {"added_tokens_decoder": decoder, "model_max_length": 131072, "tokenizer_class": tokenizer_class}
    (directory / "tokenizer_config.json").write_text(
        json.dumps(config | {"clean_up_tokenization_spaces": False} | options)
    )
    vocabulary = max(tokenizer.get_vocab().values()) + 1
    fields = {"model_type": model_type, "vocab_size": vocabulary, "max_position_embeddings": 4096}
    (directory / "config.json").write_text(json.dumps(fields | {"transformers_version": "4.44.0"}))
    return directory


def _train(
    pre_tokenizer: pre_tokenizers.PreTokenizer, *, one_line: bool = False, **options: Any
) -> tuple[dict[str, int], Merges]:
    """Vocabulary and merges, learnt from the awkward corpus and a few words that are wanted whole.

    one_line: as SentencePiece learns, which has no piece for a line feed or any other whitespace but the space.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    words = [f"{word} " * 3 + f"{word}\n" for word in WORDS] * 40
    trainer = trainers.BpeTrainer(vocab_size=1000, show_progress=False, **options)
    lines = [*corpus(), *words]
    tokenizer.train_from_iterator([" ".join(line.split()) for line in lines] if one_line else lines, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def byte_level(pattern: str, **options: Any) -> Tokenizer:
    """A byte-level BPE that splits by a regular expression."""
    vocabulary, merges = _train(split_by(pattern), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, **options))
    tokenizer.pre_tokenizer = split_by(pattern)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentence_piece() -> Tokenizer:
    """A SentencePiece BPE with byte fallback, as converted: no normaliser and no pre-tokenizer yet."""
    pieces, merges = _train(pre_tokenizers.Metaspace(), one_line=True, limit_alphabet=70)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    # SentencePiece keeps runs of spaces whole, which never cross a word.
    runs = [("▁" * size, "▁" * size) for size in (1, 2)]
    tokens += [*(piece for piece, _ in sorted(pieces.items(), key=lambda pair: pair[1])), "▁▁", "▁▁▁▁"]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, [*merges, *runs], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    strip = decoders.Strip(content=" ", left=1)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    tokenizer.add_special_tokens([special("<unk>"), special("<s>"), special("</s>")])
    return tokenizer


def _begin(tokenizer: Tokenizer, token: str) -> processors.PostProcessor:
    return processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, tokenizer.token_to_id(token))]
    )


def _qwen(
    directory: Path,
    model_type: str,
    added: Sequence[AddedToken],
    pattern: str = QWEN2,
    tokenizer_class: str = "Qwen2Tokenizer",
    **options: Any,
) -> Family:
    tokenizer = byte_level(pattern)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.add_special_tokens([special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")])
    tokenizer.add_tokens([plain("<tool_call>"), plain("</tool_call>"), plain("<|fim_prefix|>")])
    named = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None, "bos_token": None}
    write(
        directory,
        tokenizer,
        model_type,
        tokenizer_class,
        added,
        add_prefix_space=False,
        split_special_tokens=False,
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        errors="replace",
        **named | options,
    )
    return Family(directory, None, ("<|im_start|>", "<|im_end|>", "<tool_call>", "<think>", "<|endoftext|>"))


def qwen2_5(directory: Path) -> Family:
    """Qwen2 and Qwen2.5."""
    return _qwen(directory, "qwen2", (), add_bos_token=False)


def qwen3(directory: Path) -> Family:
    """Qwen3: the tags of its thinking are ordinary tokens."""
    return _qwen(directory, "qwen3", [plain("<think>"), plain("</think>")], add_bos_token=False)


def qwen3_5(directory: Path) -> Family:
    """Qwen3.5: marks belong to the letters before them."""
    thoughts = [plain("<think>"), plain("</think>")]
    found = _qwen(directory, "qwen3_5_text", thoughts, QWEN35, "Qwen3_5Tokenizer", add_bos_token=False)
    return replace(found, fragments=(*found.fragments, "e\u0301\u0301", "\u0301"))


def gpt_oss(directory: Path) -> Family:
    """gpt-oss: letters are split by case, contractions stay with their words, and nothing is put before a text."""
    tokenizer = byte_level(O200K)
    names = ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>"]
    tokenizer.add_special_tokens([special(name) for name in names])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=False, use_regex=True)
    named: dict[str, Any] = {"bos_token": names[0], "eos_token": names[2], "pad_token": names[1]}
    write(directory, tokenizer, "gpt_oss", "PreTrainedTokenizerFast", **named)
    return Family(directory, None, ("<|start|>", "<|message|>", "<|channel|>", "don't", "HTTPServer's"))


def llama3(directory: Path, added: Sequence[AddedToken] = (), **options: Any) -> Family:
    """Llama 3, 3.1 and 3.2: whole words before merges, and the beginning of text in the post-processor alone."""
    tokenizer = byte_level(LLAMA3, ignore_merges=True)
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens([special(name) for name in names])
    begin = _begin(tokenizer, names[0])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False, use_regex=True), begin])
    named = {"bos_token": names[0], "eos_token": "<|eot_id|>", "model_input_names": ["input_ids", "attention_mask"]}
    write(directory, tokenizer, "llama", "PreTrainedTokenizerFast", added, **named | options)
    return Family(directory, tokenizer.token_to_id(names[0]), (*names, *(token.content for token in added)))


def llama3_told_no_bos(directory: Path) -> Family:
    """Llama 3 with a configuration without beginning of text: transformers follows the post-processor."""
    return llama3(directory, add_bos_token=False)


def llama3_with_awkward_tokens(directory: Path) -> Family:
    """Llama 3 with added tokens that absorb whitespace, ask for word boundaries or are matched after normalising."""
    tokens = [
        AddedToken("[L]", lstrip=True, special=True, normalized=False),
        plain("[R]", rstrip=True),
        plain("ans", single_word=True),
        plain("caf\u00e9", normalized=True),
    ]
    return llama3(directory, tokens)


def _llama2(directory: Path, model_type: str, *, begins: bool = True, **options: Any) -> Family:
    tokenizer = sentence_piece()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.post_processor = _begin(tokenizer, "<s>") if begins else processors.TemplateProcessing(single="$A")
    named: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": None}
    flags: dict[str, Any] = {"add_bos_token": True, "add_eos_token": False, "legacy": True}
    flags |= {"use_default_system_prompt": False, "sp_model_kwargs": {}}
    write(directory, tokenizer, model_type, "LlamaTokenizer", **named | flags | options)
    return Family(directory, 1 if begins else None, ("<s>", "</s>", "<unk>", "▁", "<0x41>"))


def mistral_v01(directory: Path) -> Family:
    """Mistral 7B v0.1 and v0.2: SentencePiece with its marker put in by the normaliser."""
    return _llama2(directory, "mistral")


def mistral_v01_without_bos(directory: Path) -> Family:
    """Mistral 7B with a post-processor that adds nothing, though the configuration asks for it."""
    return _llama2(directory, "mistral", begins=False)


def llama2(directory: Path) -> Family:
    """Llama 2 and TinyLlama, which transformers builds anew from vocabulary and merges."""
    return _llama2(directory, "llama", legacy=False)


def mistral_v03(directory: Path) -> Family:
    """Mistral 7B v0.3: the marker is put in by the pre-tokenizer, and control tokens come first."""
    tokenizer = sentence_piece()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    tokenizer.post_processor = _begin(tokenizer, "<s>")
    tokenizer.add_special_tokens([special("[INST]"), special("[/INST]"), special("[TOOL_CALLS]")])
    named: dict[str, Any] = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": None,
        "legacy": False,
    }
    flags: dict[str, Any] = {"add_bos_token": True, "add_eos_token": False, "add_prefix_space": None}
    flags["sp_model_kwargs"] = {}
    write(directory, tokenizer, "mistral", "LlamaTokenizer", **named | flags)
    return Family(directory, 1, ("<s>", "</s>", "[INST]", "[/INST]", " [INST] ", "▁", "<0x41>"))


def gemma3(directory: Path) -> Family:
    """Gemma 3: SentencePiece without a marker before a text, and whitespace among the added tokens."""
    tokenizer = sentence_piece()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = _begin(tokenizer, "<s>")
    added = [special("<start_of_turn>"), special("<end_of_turn>"), plain("\n\n"), plain("<table>")]
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>", "mask_token": "<unk>"}
    flags: dict[str, Any] = {"add_bos_token": True, "add_eos_token": False, "sp_model_kwargs": None}
    write(directory, tokenizer, "gemma3_text", "GemmaTokenizer", added, **named | flags)
    return Family(directory, 1, ("<start_of_turn>", "<end_of_turn>", "\n\n", "  ", "<table>", "<0x41>"))


def nemo(directory: Path, padding: int = 0) -> Family:
    """Mistral Nemo: tekken. padding: unused tokens, for a vocabulary as large as the real one."""
    vocabulary, merges = _train(split_by(TEKKEN), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"]
    shifted = {token: number + len(names) for token, number in vocabulary.items()}
    unused = {f"<unused{number}>": number + len(names) + len(shifted) for number in range(padding)}
    known = {name: number for number, name in enumerate(names)} | shifted | unused
    tokenizer = Tokenizer(models.BPE(known, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(TEKKEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([special(name) for name in names])
    tokenizer.post_processor = _begin(tokenizer, "<s>")
    named: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    flags = {"add_bos_token": True, "add_eos_token": False, "add_prefix_space": False}
    write(directory, tokenizer, "mistral", "GPT2Tokenizer", **named | flags)
    return Family(directory, 1, ("<s>", "[INST]", "[/INST]", "CamelCase", "ABc", "//", "/\n", "Éa", "ǅ"))


FAMILIES: dict[str, Callable[[Path], Family]] = {
    build.__name__: build
    for build in (
        qwen2_5,
        qwen3,
        qwen3_5,
        llama3,
        llama3_told_no_bos,
        llama3_with_awkward_tokens,
        llama2,
        mistral_v01,
        mistral_v01_without_bos,
        mistral_v03,
        nemo,
        gemma3,
        gpt_oss,
    )
}
CUTTABLE = ("qwen2_5", "qwen3", "qwen3_5", "llama3", "llama3_told_no_bos", "nemo", "gpt_oss")
"""The families whose queries are cut. The others have no pre-tokenizer, or added tokens that rule it out."""
SENTENCE_PIECE = ("llama2", "mistral_v01", "mistral_v01_without_bos", "mistral_v03")

_folder: list[tempfile.TemporaryDirectory[str]] = []


@cache
def family(name: str) -> Family:
    """Return a replica, which is written once per process."""
    if not _folder:
        _folder.append(tempfile.TemporaryDirectory(prefix="tokenizer-families-"))
    return FAMILIES[name](Path(_folder[0].name) / name)
