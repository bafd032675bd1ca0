"""The loop of an oracle that runs in an environment of its own: one JSON request a line in, one JSON answer a line
out. Standard library only."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def serve(handlers: dict[str, Handler]) -> None:
    """Answers until stdin ends. Whatever libraries print to stdout goes to stderr instead."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": True, **handlers[request["op"]](request)}
        except BaseException as error:
            # A panic of a native engine is a BaseException, and an answer like any other.
            traceback.print_exc()
            kind = f"{type(error).__module__}.{type(error).__qualname__}"
            answer = {"ok": False, "class": kind, "error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer, default=str) + "\n")
        answers.flush()


def identifier(request: dict[str, Any]) -> str:
    """`db.t`, or `db.t$branch_b` for a branch."""
    branch = request.get("branch")
    return request["table"] if branch in (None, "main") else f"{request['table']}$branch_{branch}"
