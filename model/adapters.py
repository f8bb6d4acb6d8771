"""LoRA adapters that are not merged: rows name one, and what it adds is computed beside the weights of the base.

An adapter is read when the first row names it, and read again when its files have changed. All share the weights of the
base, so one more takes only its two factors of each projection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import structlog
from flax import nnx

from checkpoints.adapter_folder import AdapterFolder, Version
from checkpoints.files import CheckpointError
from model.adapted_decoders import AdaptedDecoders, Check
from model.architecture.decoder import Decoder
from model.architecture.experts import ROUTER
from model.architecture.projections import Linear, LowRank
from model.architecture.stored.lora import Adapter, open_adapter
from model.architecture.stored.tensors import WeightsError
from model.architecture.weights import fused_tensors, parameters, tensor_shapes
from scoring.layout import AdapterError, AdapterUsed, GroupWork

RANKS = 16
"""The rank of every factor is a multiple of this. Zeros behind a smaller one change nothing, and adapters share
programs."""

log = structlog.stdlib.get_logger("engine")


@dataclass(slots=True, eq=False)
class LoadedAdapter:
    """An adapter that the forward pass has."""

    used: AdapterUsed
    version: Version
    users: int = 0  # work that is not finished

    @property
    def key(self) -> str:
        """What steps name it by: another key for other contents."""
        return ":".join(self.used)

    def keyed(self, group: GroupWork) -> GroupWork:
        """Return a group that names it by its key, whose prefix is shared only with groups that do so, too."""
        return replace(group, owner=f"{group.owner}:{self.key}", adapter=self.key)


class Adapters:
    """The adapters of a folder, as far as work has named them. One thread at a time may call.

    base: the decoder whose weights they share; fingerprint: of its weights. decoders: where programs find them. check:
    see :meth:`model.adapted_decoders.AdaptedDecoders.add`.
    """

    def __init__(
        self,
        folder: AdapterFolder,
        base: Decoder,
        fingerprint: str,
        decoders: AdaptedDecoders[Any],
        check: Check,
    ) -> None:
        self._folder = folder
        self._base = base
        self._fingerprint = fingerprint
        self._decoders = decoders
        self._check = check
        self._loaded: list[LoadedAdapter] = []

    def load_all(self) -> None:
        """Read all adapters that are there, so that nobody has to wait for it. What can't be served is logged."""
        for name in self._folder.names():
            try:
                self._get(name)
            except AdapterError as error:
                log.warning("an adapter is left out", adapter=name, reason=str(error))

    @contextmanager
    def used(self, names: Iterable[str]) -> Iterator[dict[str, LoadedAdapter]]:
        """Have the adapters of these names, which stay as they are for the block. Raises AdapterError."""
        found = {name: self._get(name) for name in names}
        for one in found.values():
            one.users += 1
        try:
            yield found
        finally:
            for one in found.values():
                one.users -= 1
            self._drop_unused()

    def _get(self, name: str) -> LoadedAdapter:
        version = self._folder.version(name)
        if version is None:
            raise AdapterError(f"there is no adapter {name!r} any more")
        known = next((one for one in self._loaded if (one.used.name, one.version) == (name, version)), None)
        if known is not None:
            return known
        try:
            decoder, fingerprint = adapted(self._base, self._folder.path / name, self._fingerprint)
        except (CheckpointError, OSError) as error:
            raise AdapterError(f"the adapter {name!r} can't be served: {error}") from error
        loaded = LoadedAdapter(AdapterUsed(name, fingerprint), version)
        self._decoders.add(loaded.key, decoder, self._check)
        self._loaded.append(loaded)
        log.info("adapter loaded", adapter=name, fingerprint=fingerprint)
        return loaded

    def _drop_unused(self) -> None:
        """Drop adapters that are gone from the folder, or have changed there, unless work still names them."""
        for one in [one for one in self._loaded if not one.users]:
            if self._folder.version(one.used.name) != one.version:
                self._loaded.remove(one)
                if all(other.key != one.key for other in self._loaded):
                    self._decoders.drop(one.key)
                log.info("adapter dropped", adapter=one.used.name)


def adapted(base: Decoder, directory: Path, fingerprint: str) -> tuple[Decoder, str]:
    """Return a decoder that shares the weights of the base and has an adapter beside them, and the fingerprint of both.

    Raises :class:`checkpoints.files.CheckpointError`.
    """
    with open_adapter(directory) as adapter:
        adapter.separate(fused_tensors(base.config))
        adapter.check(tensor_shapes(base.config), tied=base.config.tied)
        adapter.refuse_whole()
        found: Decoder = nnx.merge(*nnx.split(base))
        modules = {path: module for path, module in nnx.iter_graph(found) if isinstance(module, Linear)}
        unserved = adapter.changed()
        for parameter in parameters(base):
            changed = unserved & set(parameter.names)
            if not changed:
                continue
            module = modules.get(parameter.path[:-1])
            is_router = parameter.path[-2] == ROUTER
            if module is None or is_router or len(parameter.stack) != 1:
                break
            module.low_rank = _low_rank(adapter, parameter.names, parameter.own_shape, np.dtype(module.weight.dtype))
            unserved -= changed
        if unserved:
            raise WeightsError(
                f"the adapter {directory} changes {min(unserved)}, for which it can only be merged (SCORELINE_ADAPTERS)"
            )
        return found, adapter.fingerprint(fingerprint)


def _low_rank(adapter: Adapter, names: Sequence[str], shape: tuple[int, ...], dtype: np.dtype[Any]) -> LowRank:
    """Return the factors of a stack of projections, [in, out] each, with zeros for those that do not change."""
    factors = [adapter.factors(name) for name in names]
    rank = max(one[0].shape[1] for one in factors if one is not None)
    rank = -(-rank // RANKS) * RANKS
    down, up = np.zeros((len(names), shape[0], rank), dtype), np.zeros((len(names), rank, shape[1]), dtype)
    for number, one in enumerate(factors):
        if one is not None:
            own = one[0].shape[1]
            down[number, :, :own], up[number, :own] = one
    return LowRank(jnp.asarray(down), jnp.asarray(up))
