"""Manifest entries read per second, compared with pypaimon 2.1.0 on the same manifests, alternating in one run.

Needs the pypaimon environment that ``make oracles`` prepares.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from airflow_paimon.core.format.manifest_io import read_manifest
from airflow_paimon.core.table.manifest_lists import all_manifests
from benchmarks.metadata import make_large_table

FILES, ROUNDS = 100_000, 5
_PYPAIMON = Path(__file__).resolve().parent.parent / ".oracles" / "o1" / "bin" / "python"
_THEIRS = """
import json, sys, time
from pypaimon import CatalogFactory
from pypaimon.manifest.manifest_file_manager import ManifestFileManager
catalog = CatalogFactory.create({"warehouse": sys.argv[1]})
manager = ManifestFileManager(catalog.get_table("d.big"))
names = json.loads(sys.argv[2])
print("ready", flush=True)
for line in sys.stdin:
    started = time.perf_counter()
    count = sum(len(manager.read(name)) for name in names)
    print(json.dumps({"count": count, "seconds": time.perf_counter() - started}), flush=True)
"""


def main() -> int:
    """Print entries per second of both, best of several rounds, and the ratio."""
    if not _PYPAIMON.exists():
        print("manifests: pypaimon is missing; run `make oracles` first")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        table = make_large_table(Path(folder) / "wh", FILES, 1)
        head = table.latest_snapshot()
        assert head is not None
        names = [m.file_name for m in all_manifests(table, head)]
        command = [str(_PYPAIMON), "-c", _THEIRS, str(Path(folder) / "wh"), json.dumps(names)]
        peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert peer.stdin is not None
        assert peer.stdout is not None
        peer.stdout.readline()
        ours, theirs = [], []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            count = sum(len(read_manifest(table.store.read(f"manifest/{n}"))) for n in names)
            ours.append(count / (time.perf_counter() - started))
            peer.stdin.write("go\n")
            peer.stdin.flush()
            answer = json.loads(peer.stdout.readline())
            assert answer["count"] == count == FILES
            theirs.append(answer["count"] / answer["seconds"])
        peer.stdin.close()
        peer.wait(30)
    print(f"manifest entries per second, {FILES} entries in {len(names)} manifests, best of {ROUNDS}:")
    print(f"  ours {max(ours):,.0f}, pypaimon 2.1.0 {max(theirs):,.0f}: {max(ours) / max(theirs):.1f} times (goal: 3)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
