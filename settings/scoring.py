"""What is served, and the limits of what a request may ask."""

from pydantic import Field, NonNegativeInt, PositiveInt

from settings.slice import SettingsSlice


class ScoringSettings(SettingsSlice):
    """The model and the request limits that API and worker must agree on."""

    model: str = Field("demonstration/model", description="directory of a HuggingFace checkpoint")
    model_name: str | None = Field(None, description="name in requests; default: the directory's name")
    max_labels: PositiveInt = Field(256, description="labels a request may name")
    max_items: PositiveInt = Field(100_000, description="items one job may have")
    max_items_per_call: PositiveInt = Field(1_000, description="items one `/v1/score` call may have")
    max_tokens_per_call: PositiveInt = Field(
        1_000_000, description="tokens, over all sequences, one `/v1/score` call may have"
    )
    chunk_tokens: PositiveInt = Field(16_384, description="tokens, over its sequences, that a chunk aims at")
    chunk_items: PositiveInt = Field(256, description="items a chunk has at most")
    multi_item_scoring_delimiter: NonNegativeInt | None = Field(
        None, description="token id between query and items (delimiter mode); unset: none"
    )
