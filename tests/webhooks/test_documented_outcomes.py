"""The outcomes of an attempt to deliver that are documented are those that are stored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from api.answers.schemas.jobs import DeliveryAttempt
from jobs.webhooks.deliveries import LOST
from webhooks.sending import Reason, Sent
from workers.delivery.loop import BUSY, INTERNAL, attempt_from_result

ANSWERED = attempt_from_result(Sent(500, None, "", 0.1))
STORED = {"delivered", ANSWERED.reason, INTERNAL.reason, LOST, *get_args(Reason)} - {BUSY}
DOCUMENT = Path(__file__).parents[2] / "docs/webhooks.md"


def test_the_schema_names_exactly_the_outcomes_that_are_stored() -> None:
    description = DeliveryAttempt.model_fields["outcome"].description
    assert description is not None
    assert set(re.findall("`([a-z_]+)`", description)) == STORED


def test_the_documentation_has_a_row_for_exactly_the_outcomes_that_are_stored() -> None:
    _, _, table = DOCUMENT.read_text().partition("| outcome | what happened |\n")
    rows, _, _ = table.partition("\n\n")
    assert set(re.findall("^[|] `([a-z_]+)` [|]", rows, re.MULTILINE)) == STORED
