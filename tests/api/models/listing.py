"""Tiny models of different tokenizers, and the catalogue of a running API with some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from checkpoints.source import Checkpoint
from jobs.catalogue import ListedModel, NewModel, put_models
from jobs.store.database import Database
from scoring.served_model import ServedModel
from tests.api.serving import Json, RunningApi, StandInWorker, eventually
from tests.api.tiny_model import make_model_directory


def other_model(directory: Path, corpus: str) -> Path:
    """Write a tiny model whose tokenizer was trained on another text."""
    return make_model_directory(directory, corpus=[corpus] * 30)


def described(
    name: str, directory: Path, *, aliases: Sequence[str] = (), is_default: bool = False, **settings: Any
) -> NewModel:
    """Return a model as it is listed."""
    served = ServedModel.load(
        Checkpoint(directory, name),
        name=name,
        delimiter=settings.get("multi_item_scoring_delimiter"),
        context_length=settings.get("context_length"),
        template=settings.get("template"),
    )
    card = replace(served.card, version=None)
    return NewModel(name, {"model": str(directory), **settings}, tuple(aliases), is_default, card)


class Listing:
    """The catalogue of a running API, and a stand-in worker for each version of its models."""

    def __init__(self, api: RunningApi) -> None:
        self.api = api
        self.database = Database.open(api.store)
        self._workers: list[StandInWorker] = []

    def put(self, *models: NewModel, others_retire: bool = False) -> list[ListedModel]:
        """List models, and return when the API serves them."""
        listed = put_models(self.database, models, others_retire=others_retire)
        self.see(*listed)
        return listed

    def see(self, *listed: ListedModel) -> None:
        """Return when the API gives requests these versions."""
        served = self.api.app.state.service.reading.models
        wanted = {one.version for one in listed}
        eventually(lambda: wanted <= {one.card.version for one in served.catalogue.entries}, "they are served")

    def served(self, name: str) -> Json:
        """Return what the API says of a model; an error if there is none."""
        answer: Json = self.api.client.get(f"/v1/models/{name}").json()
        return answer

    def work(self, listed: ListedModel) -> StandInWorker:
        """Have a worker score what is accepted for a version of a model."""
        worker = StandInWorker(self.api.store, listed.card, self.api.bell.bell_socket)
        worker.start()
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers:
            worker.stop()
        self.database.close()
