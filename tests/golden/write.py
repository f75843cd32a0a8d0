"""`python -m tests.golden.write [CASE …]`: rewrite what is expected, of all cases or of those named."""

from __future__ import annotations

import os
import sys

# as in the tests: how many threads add up a matrix product shows in its last digits
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main(names: list[str]) -> None:
    from tests.golden.comparing import EXPECTED, save
    from tests.golden.surface import ALL, produce

    for name in names or ALL:
        save(name, produce(name))
        print(f"{(EXPECTED / name).with_suffix('.json').stat().st_size:8,} bytes  {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
