"""The catalogue of models that requests may name.

Each change of what is computed makes a new version of a model, which is a row. What was accepted for a version is
scored by workers that serve this version, also after another one has taken its place or the model is retired.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from checkpoints.adapter_folder import SEPARATOR
from checkpoints.card import ModelCard
from checkpoints.classification import Activation, Classes
from jobs.store.clock import NOW
from jobs.store.database import Database, Transaction
from jobs.store.tables import models
from jobs.tenancy.changes import Action, record_change

MAX_NAME = 255  # characters
DEFAULT_MODEL = "default"
"""The name by which requests mean the default, whichever it is."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One version of a model. Times are Unix seconds on the database's clock."""

    version: int
    name: str
    settings: Mapping[str, Any]  # see settings.catalogue
    aliases: tuple[str, ...]  # further names that requests may give
    is_default: bool  # whether requests that name no model mean this one
    card: ModelCard
    added_at: float
    retired_at: float | None  # None: requests may name it


@dataclass(frozen=True, slots=True)
class NewModel:
    """What is to be listed."""

    name: str
    settings: Mapping[str, Any]
    aliases: tuple[str, ...]
    is_default: bool
    card: ModelCard  # its version is not known yet


def list_models(db: Database, *, retired: bool = False) -> list[ListedModel]:
    """Return the models that requests may name, the oldest first; or all versions that there were.

    Raises StorageUnavailable.
    """
    query = select(models).order_by(models.c.id)
    with db.read() as tx:
        rows = tx.execute(query if retired else query.where(models.c.retired_at.is_(None))).all()
    return [_listed(row) for row in rows]


def put_models(db: Database, wanted: Sequence[NewModel], *, others_retire: bool = False) -> list[ListedModel]:
    """List models, all or none. A model that is listed with other settings, or another card, gets a new version.

    others_retire: whether the models that are not wanted are retired. Raises ValueError, StorageUnavailable.
    """
    for new in wanted:
        _check_names(new)
    names = {new.name for new in wanted}
    if sum(new.is_default for new in wanted) > 1:
        raise ValueError("more than one model is the default")
    try:
        with db.write() as tx:
            served = {row.name: _listed(row) for row in tx.execute(_SERVED)}
            if others_retire:
                for name in served.keys() - names:
                    _retire(tx, name)
            if any(new.is_default for new in wanted):
                tx.execute(update(models).where(models.c.is_default).values(is_default=False))
            for new in wanted:
                _put(tx, served.get(new.name), new)
            listed = [_listed(row) for row in tx.execute(_SERVED)]
            _refuse_shared_names(listed)
    except IntegrityError:
        raise ValueError("somebody else has changed the same model at the same moment; please try again") from None
    return [model for model in listed if model.name in names]


def retire_model(db: Database, name: str) -> ListedModel:
    """Have requests name a model no more. What was accepted for it is still scored.

    Raises ValueError if there is none of this name, StorageUnavailable.
    """
    with db.write() as tx:
        found = tx.execute(_SERVED.where(models.c.name == name)).one_or_none()
        if found is None:
            raise no_such_model(name, [row.name for row in tx.execute(_SERVED)])
        _retire(tx, name)
        return _listed(tx.execute(select(models).where(models.c.id == found.id)).one())


def no_such_model(name: str, names: Collection[str]) -> ValueError:
    """Return the error for a name that no model of the catalogue has."""
    return ValueError(f"there is no model {name!r} in the catalogue; it has {', '.join(sorted(names)) or 'none'}")


def _put(tx: Transaction, listed: ListedModel | None, new: NewModel) -> None:
    values = {"aliases": list(new.aliases), "is_default": new.is_default}
    if listed is not None and listed.settings == new.settings and replace(listed.card, version=None) == new.card:
        if (listed.aliases, listed.is_default) == (new.aliases, new.is_default):
            return
        tx.execute(update(models).where(models.c.id == listed.version).values(**values))
        record_change(tx, Action.MODEL_SET, "", {"model": new.name, **values})
        return
    if listed is not None:
        _retire_row(tx, new.name)
    card = {name: value for name, value in asdict(new.card).items() if name not in ("name", "version")}
    row = {"name": new.name, "settings": dict(new.settings), "card": card, "added_at": NOW, **values}
    tx.execute(insert(models).values(row))
    action = Action.MODEL_ADDED if listed is None else Action.MODEL_SET
    record_change(tx, action, "", {"model": new.name, **new.settings, **values})


def _retire(tx: Transaction, name: str) -> None:
    _retire_row(tx, name)
    record_change(tx, Action.MODEL_RETIRED, "", {"model": name})


def _retire_row(tx: Transaction, name: str) -> None:
    is_served = (models.c.name == name, models.c.retired_at.is_(None))
    tx.execute(update(models).where(*is_served).values(retired_at=NOW, is_default=False))


def _check_names(new: NewModel) -> None:
    """Raise ValueError for names that requests could not tell from others."""
    for name in (new.name, *new.aliases):
        if not 1 <= len(name) <= MAX_NAME or not name.isprintable() or name != name.strip():
            raise ValueError(f"{name!r} is no name of a model: it has 1 to {MAX_NAME} printable characters")
        if SEPARATOR in name or name == DEFAULT_MODEL:
            means = f"{SEPARATOR!r} stands before an adapter's name" if SEPARATOR in name else "it means the default"
            raise ValueError(f"{name!r} can't be the name of a model: {means}")


def _refuse_shared_names(listed: Sequence[ListedModel]) -> None:
    owners: dict[str, str] = {}
    for model in listed:
        for name in (model.name, *model.aliases):
            if name in owners:
                raise ValueError(f"{name!r} is a name of {owners[name]!r} already, and would be one of {model.name!r}")
            owners[name] = model.name


def _listed(row: Row[Any]) -> ListedModel:
    # A later version may have written more.
    fields = {name: value for name, value in row.card.items() if name in ModelCard.__dataclass_fields__}
    if classes := fields.pop("classes"):
        fields["classes"] = Classes(tuple(classes["names"]), Activation(classes["activation"]))
    card = ModelCard(row.name, **fields, version=row.id)
    return ListedModel(
        row.id, row.name, row.settings, tuple(row.aliases), row.is_default, card, row.added_at, row.retired_at
    )


_SERVED = select(models).where(models.c.retired_at.is_(None)).order_by(models.c.id)
