"""Data flows one way: a module imports only from the rooms below it."""

from __future__ import annotations

import ast
from pathlib import Path

import hyena_cpu

PACKAGE = Path(hyena_cpu.__file__).parent

# From the bottom up; a room may import from any room named before it.
ROOMS = [
    "errors",
    "checks",
    "batches",
    "closing",
    "files",
    "streams",
    "tables",
    "config_recurrent",
    "config_selection",
    "config_ssm",
    "config",
    "config_json",
    "kernels",
    "threads",
    "ids",
    "pooling",
    "context",
    "linear",
    "norm",
    "relu_filter",
    "ssm",
    "filters",
    "longconv",
    "spectra_cache",
    "spectra",
    "parts",
    "history",
    "step_plan",
    "online_steps",
    "online_taps",
    "online",
    "online_bytes",
    "conv_state",
    "scan_state",
    "modal_state",
    "kv_cache",
    "selection_state",
    "lag_state",
    "state_head",
    "state_file",
    "state",
    "mixers",
    "blocks",
    "step",
    "text_stream",
    "tokenizers",
    "weights",
    "hub",
    "plan_call",
    "plan_states",
    "plan_phases",
    "planner",
    "network",
    "whole",
    "fitting",
    "engine",
    "reference",
    "sampling",
    "prompts",
    "sequences",
    "generate",
    "score",
    "genome",
    "variant_files",
    "variant_windows",
    "variants",
    "plots",
    "embed",
    "arrays",
    "mqar",
    "recall",
    "model",
    "dry_run",
    "worked",
    "verify",
    "",  # hyena_cpu itself
    "bench_runs",
    "progress",
    "ray_data",
    "cli",
    "__main__",
]


def room(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imports(path: Path) -> set[str]:
    """Rooms that a file imports at run time."""
    depth = len(path.relative_to(PACKAGE).parts)
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only or not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        if node.level < depth:
            continue  # within the same room
        if node.module:
            found.add(node.module.split(".")[0])
        else:
            found.update(alias.name for alias in node.names if not alias.name.startswith("_"))
    return found


def test_every_import_goes_down() -> None:
    for path in PACKAGE.rglob("*.py"):
        here = room(path)
        assert here in ROOMS, f"{path.name} is in no room: add it to the list, in its place"
        for name in imports(path):
            if name not in ROOMS:
                name = ""  # a name of the package itself
            if name != here:
                assert ROOMS.index(name) < ROOMS.index(here), f"{here} imports {name} ({path})"
