"""``make bench``: runs every benchmark in its own process and prints figures and ratios."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all."""
    known = sorted(p.stem for p in Path(__file__).parent.glob("[a-z]*.py"))
    unknown = [n for n in names if n not in known]
    if unknown:
        print(f"There is no benchmark {unknown[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    failed = 0
    for name in names or known:
        print(f"== {name}", flush=True)
        failed += subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
