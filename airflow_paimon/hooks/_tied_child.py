"""Run a command that is killed when the process that started it dies: ``python _tied_child.py PARENT_PID COMMAND...``.

In a process of its own, not in ``preexec_fn``: Python code between fork and exec can deadlock where there are threads.
The tie survives exec, so it holds for the JVM that ``spark-submit`` becomes. It is to the *thread* that started this
one; a thread that waits for the command is fine.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    parent, command = int(argv[1]), argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1  # it died before the tie was there
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]} can't be run: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv))
