"""The guide to DNA runs as it stands: its commands, its snippets, and the output that it shows.

A comment before a fenced block says what becomes of it: `files` makes the input of every section,
`tested` is run (`, with X`: where the module X is installed), `output` is what the block before
it prints, with its numbers cut short, and `not run: REASON` is none of these.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import importlib.util
import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hyenadna_files
import pytest
from conftest import PACKAGE_HOME
from model_files import GOLDEN

import hyena_cpu
from hyena_cpu import BUNDLED, config_json
from hyena_cpu.cli import COMMANDS
from hyena_cpu.config import MixerConfig
from hyena_cpu.hub import HYENADNA

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs/dna.md"
FORMATS = ROOT / "docs/formats.md"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"(?:<!-- ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KINDS = ("files", "tested", "output", "not run")
FOREIGN_OPTIONS = {"--no-build-isolation", "--benchmark-only"}  # of pip and pytest


@dataclass(frozen=True)
class Block:
    """A fenced block of a section; `needs` are modules."""

    line: int
    kind: str
    needs: tuple[str, ...]
    language: str
    text: str

    def missing(self) -> list[str]:
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def sections() -> dict[str, list[Block]]:
    """Blocks of the guide by heading of the second level."""
    text = GUIDE.read_text()
    starts = [0, *(m.start() for m in re.finditer(r"^## ", text, re.MULTILINE)), len(text)]
    found: dict[str, list[Block]] = {}
    for start, stop in itertools.pairwise(starts):
        title = text[start:].partition("\n")[0].lstrip("# ")
        for match in BLOCK.finditer(text, start, stop):
            kind, _, needs = (match[1] or "").partition(", with ")
            line = text.count("\n", 0, match.start(3)) + 1
            names = tuple(re.split(r", | and ", needs)) if needs else ()
            block = Block(line, kind.partition(":")[0], names, match[2], match[3])
            found.setdefault(title, []).append(block)
    return found


SECTIONS = sections()
FILES = [block for blocks in SECTIONS.values() for block in blocks if block.kind == "files"]
RUN = [title for title, blocks in SECTIONS.items() if any(b.kind == "tested" for b in blocks)]


def test_every_block_of_the_guide_says_what_becomes_of_it() -> None:
    for blocks in SECTIONS.values():
        for block in blocks:
            assert block.kind in KINDS, f"docs/dna.md:{block.line}: the block is not marked"
            allowed = ("text",) if block.kind == "output" else ("sh", "python")
            assert block.language in allowed, f"docs/dna.md:{block.line}: {block.language}"
    assert len(RUN) >= 6, "the guide has lost its tested sections"


@pytest.mark.filterwarnings("default")  # those of pandas and its friends are not ours
@pytest.mark.parametrize("title", RUN)
def test_the_section_runs(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("HYENA_CPU_THREADS", "1")
    monkeypatch.setenv("PATH", f"{program(tmp_path)}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE_HOME))
    for block in FILES:
        shell(block)
    prepare(work, [name for block in SECTIONS[title] for name in block.needs])
    names: dict[str, Any] = {}
    printed: str | None = None
    left = []
    for block in SECTIONS[title]:
        if block.kind == "output":
            if printed is not None:
                compare(block, printed)
        elif block.kind == "tested" and block.missing():
            left.append(f"line {block.line} needs {' and '.join(block.missing())}")
            printed = None
        elif block.kind == "tested":
            printed = shell(block) if block.language == "sh" else python(block, names)
    if left:
        pytest.skip(f"the rest of the section has run; docs/dna.md: {', '.join(left)}")


def program(folder: Path) -> Path:
    """A folder with `hyena-cpu`, for PATH."""
    path = folder / "bin" / "hyena-cpu"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hyena_cpu "$@"\n')
    path.chmod(0o755)
    return path.parent


def prepare(work: Path, needs: list[str]) -> None:
    """The model folders that the guide takes for given."""
    folder = work / "my-classifier"
    folder.mkdir()
    stem = GOLDEN / "hyenadna/hf_seqcls"
    shutil.copy(stem.with_suffix(".config.json"), folder / "config.json")
    shutil.copy(stem.with_suffix(".safetensors"), folder / "model.safetensors")
    if "torch" in needs and importlib.util.find_spec("torch") is not None:
        tiny = hyenadna_files.PUBLIC["tiny-1k-seqlen"]
        hyenadna_files.write_original(work / "downloaded", tiny)


def shell(block: Block) -> str:
    """What a block prints to standard output; every command of it must succeed."""
    command = ["bash", "-euo", "pipefail", "-c", block.text]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, f"docs/dna.md:{block.line}: {run.stderr}"
    return run.stdout


def python(block: Block, names: dict[str, Any]) -> str:
    """What a snippet prints; those of a section share their names, as in a notebook."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("\n" * (block.line - 1) + block.text, str(GUIDE), "exec"), names)
    return out.getvalue()


def compare(block: Block, printed: str) -> None:
    """Word by word. A number of the guide stands for all that are rounded to it, or nearly so."""
    shown, got = ([line.split() for line in text.splitlines()] for text in (block.text, printed))
    where = f"docs/dna.md:{block.line}: the output is now\n{printed}"
    assert [len(line) for line in shown] == [len(line) for line in got], where
    for want, have in zip(itertools.chain(*shown), itertools.chain(*got), strict=True):
        if re.fullmatch(r"-?\d+\.\d+", want):
            step = 10.0 ** -len(want.partition(".")[2])
            assert abs(float(want) - float(have)) <= 0.7 * step, where
        else:
            assert want == have, where


def test_options_in_the_documents_exist() -> None:
    from bench_modules import run

    known = set(FOREIGN_OPTIONS)
    for command in COMMANDS:
        parser = importlib.import_module(f"hyena_cpu.cli.{command}").parser()
        known.update(parser._option_string_actions)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for part in action.choices.values():
                    known.update(part._option_string_actions)
    known.update(run.parser()._option_string_actions)
    for tool in (ROOT / "tools").glob("*.py"):  # read, not imported: most need PyTorch
        known.update(re.findall(r'"(--[a-z][a-z-]*)"', tool.read_text()))
    for page in PAGES:
        text = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text):
            assert option in known, f"{page.name}: no command has {option}"


def test_links_in_the_documents_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_example_of_a_configuration_is_one() -> None:
    (example,) = re.findall(r"^```json\n(.*?)^```$", FORMATS.read_text(), re.MULTILINE | re.DOTALL)
    config = config_json.parse(json.loads(example))
    assert [layer.mixer.kind for layer in config.layers] == ["hyena", "attention"]


def test_the_keys_of_mixers_are_those_of_the_program() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", FORMATS.read_text(), re.MULTILINE)
    for kind in typing.get_args(MixerConfig):
        said = next(keys for name, keys in rows if name == kind.kind)
        keys = dict(re.findall(r"`(\w+)`(?: ([\w.-]+))?", said))
        fields = {field.name: field.default for field in dataclasses.fields(kind)}
        assert set(keys) == set(fields) - {"kind"}, kind.kind
        for name, value in keys.items():
            default = "" if fields[name] is dataclasses.MISSING else json.dumps(fields[name])
            assert value == default.strip('"'), f"{kind.kind}: {name}"


def test_names_of_models_in_the_guide_exist() -> None:
    text = GUIDE.read_text()
    rows = re.findall(r"^\| (`.*?) \|", text[text.index("## The model") :], re.MULTILINE)
    named = set(re.findall(r"`((?:tiny|hyenadna)-[\w-]+)`", " ".join(rows)))
    assert named == set(HYENADNA) | {"tiny-dna"}
    assert all(name in (ROOT / "docs/recall.md").read_text() for name in BUNDLED if "/" in name)
    for model in hyenadna_files.PUBLIC.values():
        assert f"{model.l_max:,}" in text


def test_the_table_of_rooms_names_every_module() -> None:
    package = Path(hyena_cpu.__file__).parent
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("| room |") : text.index("\n\n", text.index("| room |"))]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    named = {Path(name).name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    rooms = {p.name for p in package.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert rooms - named == {"__init__.py", "__main__.py"}, "CONTRIBUTING.md: add what is missing"
    assert {name for name in named if name.endswith(".py")} <= rooms
