"""One of the processes of ``in_processes``: takes pieces from its stdin, gives results to its stdout."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import sys
import traceback
from typing import IO, Any

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.garbage import collect_seldom

_PR_SET_PDEATHSIG = 1


def serve() -> None:
    """Call the function that comes first for each piece that comes then, until there are no more."""
    _end_with_parent()
    collect_seldom()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: whoever started this process ends it
    source = sys.stdin.buffer
    target = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints is no result
    with contextlib.suppress(BrokenPipeError):
        function = pickle.load(source)
        while True:
            try:
                piece = pickle.load(source)
            except EOFError:
                return
            try:
                for result in function(piece):
                    _send(target, "result", result)
                _send(target, "end", None)
            except BrokenPipeError:
                raise
            except Exception as error:
                _send(target, "error", _sendable(error))


def _send(target: IO[bytes], kind: str, value: Any) -> None:
    data = pickle.dumps((kind, value), pickle.HIGHEST_PROTOCOL)
    rest = memoryview(len(data).to_bytes(8, "big") + data)
    while rest:
        rest = rest[target.write(rest) :]


def _sendable(error: Exception) -> Exception:
    """Return an error that the other side can read: one of this package's as it is, of others what they say."""
    if isinstance(error, PaimonError):
        with contextlib.suppress(Exception):
            if type(pickle.loads(pickle.dumps(error))) is type(error):
                return error
    return RuntimeError("".join(traceback.format_exception(error)))


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
