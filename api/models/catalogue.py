"""Which models requests may name at one moment, by all of their names. It is plain data, for other processes, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from checkpoints.adapter_folder import SEPARATOR
from checkpoints.card import ModelCard
from jobs.catalogue import DEFAULT_MODEL, ListedModel
from settings.catalogue import settings_of_model
from settings.errors.mistakes import SettingError
from settings.scoring import ScoringSettings

Key = tuple[str, int | None]
"""The name and the version of a model, which is None for that of the environment."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One model."""

    card: ModelCard
    scoring: ScoringSettings
    aliases: tuple[str, ...] = ()
    fault: str | None = None  # why this process can't serve it

    @property
    def key(self) -> Key:
        """What tells this version of the model from all others."""
        return self.card.name, self.card.version


@dataclass(frozen=True, slots=True)
class Found:
    """What the database says of the catalogue."""

    versions: Sequence[ListedModel] = ()  # all that there were, the oldest first
    live: frozenset[Key] = frozenset()  # what live workers serve

    @property
    def listed(self) -> list[ListedModel]:
        """The versions that are not retired, the model first that was added first."""
        first = {model.name: model.version for model in reversed(self.versions)}
        return sorted((one for one in self.versions if one.retired_at is None), key=lambda one: first[one.name])

    def served(self, model: ListedModel) -> ListedModel:
        """Return the version that requests for a model get: the one before, until workers have loaded the new one.

        So a change refuses no request, and a version that no worker can load takes the place of none that works.
        """
        if (model.name, model.version) in self.live:
            return model
        before = [one for one in self.versions if one.name == model.name and (one.name, one.version) in self.live]
        return replace(before[-1], aliases=model.aliases) if before else model


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """The models of one moment."""

    default: Entry
    by_name: Mapping[str, Entry]  # by names and aliases
    by_key: Mapping[str, Entry]  # by work keys, those of retired versions as well
    names: frozenset[str]  # those of retired models as well, without aliases

    @classmethod
    def of(cls, environment: Entry | None, scoring: ScoringSettings, found: Found) -> Catalogue:
        """Return the models of the catalogue, beside the one that the environment describes, if any.

        A model of the catalogue takes the place of one with the same name in the environment, once it has live workers
        or that one has none any more. The default is the one
        that the catalogue says, or else that of the environment or what took its place, or else the oldest. There must
        be one. No alias takes the name of a model.
        """
        listed = found.listed
        entries = [_entry(found.served(model), scoring) for model in listed]
        if environment is not None and environment.key in found.live:
            entries = [
                replace(environment, aliases=entry.aliases)
                if entry.card.name == environment.card.name and entry.key not in found.live
                else entry
                for entry in entries
            ]
        of_names = {entry.card.name: entry for entry in entries}
        if environment is not None:
            of_names = {environment.card.name: environment} | of_names
        of_aliases = {alias: entry for entry in entries for alias in entry.aliases}
        defaults = [entry for entry, model in zip(entries, listed, strict=True) if model.is_default]
        own = [] if environment is None else [of_names[environment.card.name]]
        retired = [_entry(model, scoring) for model in found.versions if model.retired_at is not None]
        by_key = {entry.card.work_key: entry for entry in (*retired, *of_names.values())}
        names = frozenset(entry.card.name for entry in by_key.values())
        return cls((*defaults, *own, *entries)[0], of_aliases | of_names, by_key, names)

    @property
    def entries(self) -> list[Entry]:
        """All models, the default first."""
        return list({entry.key: entry for entry in (self.default, *self.by_name.values())}.values())

    def find(self, name: object) -> Entry | None:
        """Return the model that a request means by a name; None if that can't be told from the name of the model.

        No name, or ``default``, means the default. Behind the name of a model may stand that of an adapter.
        """
        if name is None or name == DEFAULT_MODEL:
            return self.default
        if not isinstance(name, str):
            return None
        return self.by_name.get(name) or self.by_name.get(name.partition(SEPARATOR)[0])


def _entry(model: ListedModel, environment: ScoringSettings) -> Entry:
    try:
        scoring, fault = settings_of_model(environment, model.name, model.settings), None
    except SettingError as error:  # another version of the service has listed it
        scoring, fault = environment, str(error)
    return Entry(model.card, scoring, model.aliases, fault)
