"""Write the pages of the site, for the tool that builds it: ``make docs``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from docs.site.pages import texts, write_pages


def main() -> None:
    """Write pages and configuration into the folder that is named, and nothing else into it."""
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        write_pages(folder, texts())
    except ValueError as error:
        sys.exit(f"Links are broken:\n{error}")


if __name__ == "__main__":
    main()
