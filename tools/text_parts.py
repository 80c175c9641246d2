"""Writes the parts of the training texts as files, for `hyena-cpu recall` and `hyena-cpu score`.

    python tools/text_parts.py --data DIR --out PARTS

PARTS/training holds what `tiny-en` was trained on, PARTS/held-out the rest of the same texts, and
PARTS/outside the texts that it was only measured on; all with CR LF turned to LF.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from text_data import OUTSIDE, TRAINING, read_texts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    parts = [("training", t.source.name, t.training) for t in read_texts(options.data, TRAINING)]
    parts += [("held-out", t.source.name, t.held_out) for t in read_texts(options.data, TRAINING)]
    parts += [("outside", t.source.name, t.content) for t in read_texts(options.data, OUTSIDE)]
    for part, name, content in parts:
        (options.out / part).mkdir(parents=True, exist_ok=True)
        (options.out / part / f"{name}.txt").write_bytes(content)


if __name__ == "__main__":
    main()
