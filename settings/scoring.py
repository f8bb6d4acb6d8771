"""The served model and the limits of requests."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from settings.errors.mistakes import setting_error, variable_of
from settings.slice import SettingsSlice


class ScoringSettings(SettingsSlice):
    """The model and the request limits that API and worker must agree on."""

    model: str = Field(
        "./demonstration/model",
        description="folder of a HuggingFace checkpoint, or the id of a model on the hub, such as `Qwen/Qwen3-0.6B`",
    )
    model_revision: str | None = Field(
        None, description="branch, tag or commit of a model on the hub; default: its main branch"
    )
    model_name: str | None = Field(None, description="name in requests; default: the hub id, or the folder's name")
    adapters: str | None = Field(
        None,
        description="LoRA adapter that is merged into the model when it is loaded, one at the most: a folder that PEFT "
        "has written, or the id of an adapter on the hub; requests name the model by its name",
    )
    adapter_folder: Path | None = Field(
        None,
        description="folder with LoRA adapters that are not merged, a folder each, named `MODEL:ADAPTER` in requests; "
        "they may come and go while API and workers run",
    )
    calibrations: Path | None = Field(
        None,
        description="folder with what `scoreline calibrate` and `scoreline threshold` have made: requests name a file "
        "without its ending (docs/judgement.md); files may come and go while the API runs",
    )
    template: str | None = Field(
        None,
        description="template by which `/v1/rerank` asks the model: the name of one, or a file of yours "
        "(docs/prompts.md); default: the one that was made for a model of this name, or else a plain "
        "question",
    )
    context_length: PositiveInt | None = Field(
        None, description="longest sequence in tokens that is served; default: the checkpoint's"
    )
    max_labels: PositiveInt = Field(256, description="labels a request may name")
    max_item_labels: PositiveInt = Field(
        65_536, description="labels of all items together, if a request has labels for each item"
    )
    max_items: PositiveInt = Field(100_000, description="items one job may have")
    max_items_per_upload: PositiveInt = Field(1_000_000, description="items of one job sent as JSON lines, at most")
    max_items_per_call: PositiveInt = Field(1_000, description="items one `/v1/score` call may have")
    max_tokens_per_call: PositiveInt = Field(
        1_000_000, description="tokens, over all sequences, one `/v1/score` call may have"
    )
    chunk_tokens: PositiveInt = Field(
        16_384, description="target size of a chunk in tokens to compute, without the shared query"
    )
    chunk_items: PositiveInt = Field(256, description="items a chunk has at most")
    multi_item_algorithm: Literal["auto", "packed", "prefill_extend", "serial"] = Field(
        "auto", description="how items that share a query are scored; `auto` decides by the query's length"
    )
    multi_item_scoring_delimiter: NonNegativeInt | None = Field(
        None, description="token id between query and items (delimiter mode); unset: none"
    )

    @model_validator(mode="after")
    def _adapters_are_merged_or_named(self) -> Self:
        if self.adapters is not None and self.adapter_folder is not None:
            expected = (
                f"it must be unset where {variable_of('adapter_folder')} is set: an adapter of the folder was not "
                "trained on a model with another adapter in it"
            )
            raise setting_error("adapters", self.adapters, expected)
        return self
