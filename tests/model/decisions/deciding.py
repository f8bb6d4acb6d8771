"""Answer decisions as the service does: render, encode, score with an engine, and compute the answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from api.answers.decisions.shown_answers import show_decision
from checkpoints.classification import Activation
from checkpoints.files import read_model_card
from jobs.store.records import Submission
from scoring.decisions.checkpoint import DecisionCheckpoint
from scoring.decisions.decision import decide
from scoring.decisions.orders import parse_permute
from scoring.decisions.prompts import PromptWriter
from scoring.decisions.questions import path_of, read_systemone
from scoring.layout import ChunkWork, GroupWork, LabelScores
from scoring.options import ScoreOptions, Shape
from scoring.prepare import PreparedRequest, prepare
from scoring.request import ScoreRequest
from scoring.tokenizing.tokenization import TextTokenizer
from tests.model import engines
from tests.model.decisions.stored import digest
from tests.packed_rows import whole_sequences
from tests.scoring.generous_limits import GENEROUS


class Deciding:
    """A checkpoint that is loaded as API and worker do it, in float32."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.tokenizer = TextTokenizer.load(directory)
        self._writer = PromptWriter(DecisionCheckpoint.read(directory, self.tokenizer), self.tokenizer)
        self._card = read_model_card(directory, None, None, self.tokenizer)
        self.engine = engines.load(directory, "float32", **{"step_tokens": 64} | settings)

    @property
    def fingerprint(self) -> str:
        """That of the weights."""
        return self.engine.weights_fingerprint

    def warm_up(self) -> None:
        """Compile all programs, and compare them with NumPy."""
        self.engine.warm_up(lambda *_: None)
        self.engine.warm_up_rest(lambda *_: None)

    def request(self, body: Mapping[str, Any]) -> ScoreRequest:
        questions = read_systemone(body["questions"])
        paths = [path_of(question.name or "") for question in questions]
        permute = parse_permute(body.get("permute"))
        decision = decide(self._writer, body["state"], questions, paths, permute=permute)
        classes = self._card.classes
        activation = Activation.VOCABULARY if classes is None else classes.activation
        top = classes is None
        options = ScoreOptions(
            apply_softmax=True, label_mass=True, top=top, shape=Shape.SYSTEMONE, activation=activation
        )
        return ScoreRequest(
            decision.prompts.shared,
            list(decision.prompts.behind),
            None,
            None,
            options,
            item_labels=decision.labels,
            decision=decision,
        )

    def prepared(self, request: ScoreRequest) -> PreparedRequest:
        return prepare(request, self._card, self.tokenizer, GENEROUS)

    def prompts(self, body: Mapping[str, Any]) -> list[str]:
        """Return a digest of the ids of each prompt up to where it is read."""
        prepared = self.prepared(self.request(body))
        sequences = [one for chunk in prepared.chunks for one in whole_sequences(prepared.prefix, chunk.rows)]
        return [digest(list(map(int, sequence))) for sequence in sequences]

    def answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        request = self.request(body)
        prepared = self.prepared(request)
        works = tuple(
            ChunkWork(n, chunk.rows, prepared.label_token_ids, request.options.head, top=request.options.top)
            for n, chunk in enumerate(prepared.chunks)
        )
        scored = engines.score(self.engine, [GroupWork("owner", prepared.prefix, works)])
        scores = LabelScores.join([scored[n] for n in range(len(works))])
        assert request.decision is not None
        assert prepared.item_labels is not None
        submission = Submission(
            model="model",
            work_key="",
            prefix=prepared.prefix,
            chunks=prepared.chunks,
            label_token_ids=prepared.label_token_ids,
            prompt_tokens=prepared.prompt_tokens,
            total_items=prepared.total_items,
            options=request.options,
            warnings=prepared.warnings,
            form=request.decision.form(prepared.sequence_lengths),
        )
        return show_decision(submission, scores, prepared.item_labels, cached_tokens=0)
