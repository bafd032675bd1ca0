"""JSON of files that anybody may have written."""

from __future__ import annotations

import json
from typing import Any


def parse_json(data: bytes | str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is none, is nested too deeply, or has a number of too many digits.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
