"""Every figure of the README in one run, on this machine.

    python bench/run.py                      writes bench/results/local.json, prints the table
    python bench/run.py --plot               draws docs/speed-{time,memory,decode}.svg too
    python bench/run.py --quick              a few minutes, shorter lengths
    python bench/run.py --show NAME --plot   the table and plots of figures measured before

Each side of a comparison runs in a process of its own, held to the same CPUs; their calls are made
in turn, and medians compared. What is not installed is left out, and said. `stages.py` lists what
is compared; `sides.py` is what runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import latency
import pictures
import stages
import summary

HERE = Path(__file__).parent
PEERS = ("torch", "scipy", "llama_cpp_python", "gguf", "mkl_fft", "pyfftw", "matplotlib")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="bench/run.py", description=__doc__.splitlines()[0])
    p.add_argument("--name", default="local", help="of the results file (default: local)")
    p.add_argument("--quick", action="store_true", help="shorter lengths, three repetitions")
    p.add_argument("--long", action="store_true", help="160,000 tokens and more too, in hours")
    names = [stage.name for stage in stages.STAGES]
    p.add_argument("--only", nargs="+", choices=names, metavar="STAGE", help=", ".join(names))
    p.add_argument("--show", metavar="NAME", help="measure nothing: read bench/results/NAME.json")
    p.add_argument("--plot", action="store_true", help="draw the plots into --docs")
    p.add_argument("--docs", type=Path, default=HERE.parent / "docs", metavar="FOLDER")
    p.add_argument("--results", type=Path, default=HERE / "results", metavar="FOLDER")
    return p


def main() -> int:
    args = parser().parse_args()
    if args.show is not None:
        if args.quick or args.long or args.only:
            sys.exit("--show measures nothing: --quick, --long and --only have no effect")
        found = json.loads((args.results / f"{args.show}.json").read_text())
    else:
        steps = latency.QUICK_STEPS if args.quick else latency.STEPS
        effort = stages.Effort(args.quick, args.long, 3 if args.quick else 7, steps)
        found = measure(effort, args.only, args.results / f"{args.name}.json")
    print(summary.markdown(found["rows"]))
    if args.plot:
        for path in pictures.draw(found["rows"], args.docs):
            print(path, file=sys.stderr)
    return 0


def measure(effort: stages.Effort, only: list[str] | None, path: Path) -> dict[str, Any]:
    """Runs the stages; the file is written again after each, so that no figure is lost."""
    found: dict[str, Any] = {"effort": vars(effort), **machine(), "rows": []}
    path.parent.mkdir(parents=True, exist_ok=True)
    for stage in stages.chosen(effort, only):
        for row in stages.rows(stage, effort):
            found["rows"].append(row)
            figure = row["absent"] or f"{row['median']:.4g} {row['unit']}"
            print(f"{stage.name} {row['length']} {row['side']}: {figure}", file=sys.stderr)
        found["load_after"] = load()
        path.write_text(json.dumps(found, indent=1) + "\n")
    return found


def machine() -> dict[str, Any]:
    """The machine, versions, and what else was running."""
    from hyena_cpu.bench_runs import machine as here

    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "machine": here.facts(),
        "versions": {name: version(name) for name in PEERS},
        "huge_pages": pages.read_text().strip() if pages.exists() else None,
        "load_before": load(),
    }


def version(name: str) -> str | None:
    """Of an installed distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def load() -> float | None:
    """Processes that ran or waited in the last minute: above 1 before the run, others ran too."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


if __name__ == "__main__":
    sys.exit(main())
