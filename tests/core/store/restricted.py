"""Run a function in a child process that may do less than this one: no hard links, another user, no large files."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path

import tests

LINK_CALLS = {"x86_64": (86, 265), "aarch64": (37,)}
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SECCOMP_ERRNO = 0x00050000
SECCOMP_ALLOW = 0x7FFF0000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


def run_restricted(restriction: str, code: str) -> str:
    """Run ``code`` in a new interpreter under ``restriction`` (a call from this module); give its output."""
    imports = "from tests.core.store.restricted import *\nfrom airflow_paimon.core.store import open_store"
    script = f"{imports}\n{restriction}\n{code}"
    root = str(Path(tests.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=600, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def attempt(call: str) -> None:
    """Print the error that ``call`` ends with (class and message), or ``ok``; called inside the child."""
    frame = sys._getframe(1)
    try:
        eval(call, frame.f_globals, frame.f_locals)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    else:
        print("ok")


def refuse_hard_links(error: int) -> None:
    """Let the kernel answer link(2) with ``error``, as file systems without hard links do (FAT, exFAT, some FUSE)."""
    machine = platform.machine()
    numbers = LINK_CALLS[machine]
    rules = [(0x20, 0, 0, 4), (0x15, 1, 0, AUDIT_ARCH[machine]), (0x06, 0, 0, SECCOMP_ALLOW), (0x20, 0, 0, 0)]
    for left, number in zip(reversed(range(len(numbers))), numbers, strict=True):
        rules.append((0x15, left + 1, 0, number))
    rules += [(0x06, 0, 0, SECCOMP_ALLOW), (0x06, 0, 0, SECCOMP_ERRNO | error)]
    packed = b"".join(struct.pack("HBBI", *rule) for rule in rules)
    instructions = ctypes.create_string_buffer(packed)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    program = Program(len(rules), ctypes.cast(instructions, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def become_nobody() -> None:
    """Give up root's rights, which no permission bit stops."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def limit_file_size(limit: int) -> None:
    """Let writes beyond ``limit`` bytes of a file fail (EFBIG), as a full disk does."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
