"""One of several writers that race to create the same objects: a process of its own, told when to go.

Gets a pickled store and its number (hex, as arguments); for each line on stdin, which names an object, it tries to
create it and answers ``won``, ``lost`` or the error.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import tests
from airflow_paimon.core.errors import AlreadyExistsError
from airflow_paimon.core.store import Store

SIZE = 1000


def content(racer: int) -> bytes:
    return f"{racer}".encode() * SIZE


def race(store: Store, racers: int, names: list[str]) -> list[list[str]]:
    """Let ``racers`` processes race for each name; give what each of them answered, name by name."""
    root = Path(tests.__file__).parent.parent
    with ExitStack() as stack:
        processes = []
        for racer in range(racers):
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, pickle.dumps(store).hex(), str(racer)],
                cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            )  # fmt: skip
            stack.callback(process.wait, timeout=500)
            stack.enter_context(process)
            assert process.stdin is not None
            assert process.stdout is not None
            stack.callback(process.stdin.close)
            processes.append((process.stdin, process.stdout))
        for _, answers in processes:
            assert answers.readline() == "ready\n"
        found = []
        for name in names:
            for orders, _ in processes:
                orders.write(f"{name}\n")
            found.append([answers.readline().strip() for _, answers in processes])
        return found


def main() -> None:
    store: Store = pickle.loads(bytes.fromhex(sys.argv[1]))
    data = content(int(sys.argv[2]))
    store.list("")  # connected, before the race begins
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            store.create(line.strip(), data)
        except AlreadyExistsError:
            print("lost", flush=True)
        except Exception as error:
            print(repr(error), flush=True)
        else:
            print("won", flush=True)


if __name__ == "__main__":
    main()
