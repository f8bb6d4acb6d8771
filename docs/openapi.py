"""Write the OpenAPI document of the API beside this file: ``make openapi``."""

from __future__ import annotations

import json
from pathlib import Path

from api.application import with_routes

DOCUMENT = Path(__file__).with_suffix(".json")


def document() -> str:
    """Return the document, as every server gives it at ``/openapi.json``."""
    return json.dumps(with_routes().openapi(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
