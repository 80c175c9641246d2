"""--dry-run of score, variants and embed: the largest call of the run, and nothing else."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dna_toy import CONFIG, bases
from test_dry_run import checked
from toy import CAUSAL, dna_folder, weights

from hyena_cpu.cli import main
from hyena_cpu.planner import KEPT, Plan
from hyena_cpu.weights import save_folder

LONGEST = 6000
REFERENCE = bases(9000)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, records of many lengths, two of which fail, and variants in several windows."""
    folder = tmp_path_factory.mktemp("dry")
    dna_folder(folder / "model", LONGEST)
    hybrid = replace(
        CAUSAL["finite_hybrid"],
        **{  # such as has no `branches`
            name: getattr(CONFIG, name)
            for name in ("vocab_size", "logits_width", "tokenizer", "special_tokens")
        },
    )
    save_folder(folder / "hybrid", hybrid, weights(hybrid).tensors)
    sequences = [bases(n, seed=n) for n in (50, 900, 5, 5500, 700, 700, LONGEST - 1, 8000)]
    sequences[2] = "AC-GT"
    records = "".join(f">r{i}\n{s}\n" for i, s in enumerate(sequences))
    (folder / "x.fa").write_text(records)
    (folder / "one.fa").write_text(f">one\n{bases(3000)}\n")
    (folder / "text").write_text("The sea was calm, and nobody had seen the ship. " * 40)
    (folder / "ref.fa").write_text(f">c\n{REFERENCE}\n")
    lines = ["pos\tref\talt", "7\tNN\tA", "9\tA\t<DEL>"]
    for pos in (10, 1500, 4000, 4001, 8990):
        ref = REFERENCE[pos - 1]
        lines += [f"{pos}\t{ref}\t{alt}" for alt in "ACGT" if alt != ref]
    (folder / "v.tsv").write_text("\n".join(lines) + "\n")
    (folder / "snv.tsv").write_text("\n".join([lines[0], lines[-1]]) + "\n")
    return folder


class Program:
    """Runs commands on the files of `home` and tells what they print."""

    def __init__(self, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self.capfd = capfd
        self.out = self.err = ""

    def __call__(self, command: str, *args: str) -> int:
        own = {
            "variants": ["--variants", "v.tsv"],
            "score": ["--fasta", "x.fa"],
            "embed": ["--fasta", "x.fa"],
        }[command]
        own = [] if {"--fasta", "--variants", "-f"} & set(args) else own
        own += [] if "-m" in args else ["-m", "model"]
        own += ["--reference", "ref.fa"] if command == "variants" else []
        self.capfd.readouterr()
        code = main([command, "-t", "1", *own, *args])
        self.out, self.err = self.capfd.readouterr()
        return code

    @property
    def plan(self) -> Plan:
        """What was printed, which must be a plan and nothing else."""
        lines = [re.fullmatch(r"(\S.*?) {2,}([\d,]+)", x) for x in self.out.splitlines()]
        assert all(lines), self.out
        rows = [(line[1], int(line[2].replace(",", ""))) for line in lines if line is not None]
        plan = Plan(tuple(rows[:-1]))
        assert rows[-1] == ("total", plan.total)
        return plan


@pytest.fixture
def program(home: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.chdir(home)
    return Program(home, capfd)


RUNS = [
    ["score"],
    ["score", "--per-position"],
    ["score", "--strand", "both", "--special", "cls-sep"],
    ["score", "--window", "1000", "--stride", "300", "--bos"],
    ["score", "--window", "1000", "--per-position", "--strand", "rc"],
    ["score", "--alphabet", "acgt"],
    ["score", "--max-memory", "20M"],
    ["score", "-m", "hybrid"],
    ["score", "--fasta", "one.fa"],
    ["score", "-m", "tiny-en", "-f", "text"],
    [
        "score",
        "-m",
        "tiny-en",
        "-f",
        "text",
        "--per-position",
        "--window",
        "100",
        "--style",
        "tale",
    ],
    ["variants"],
    ["variants", "--window", "3000", "--strand", "both"],
    ["variants", "--window", "3000", "--no-share"],
    ["variants", "-m", "hybrid", "--window", "2000"],
    ["variants", "-m", "hybrid", "--window", "2000", "--no-share"],
    ["variants", "--window", "1000", "--max-memory", "20M"],
    ["embed"],
    ["embed", "--pool", "none", "--fasta", "one.fa"],
    ["embed", "--layer", "0", "--max-memory", "20M"],
]


@pytest.mark.parametrize("args", RUNS, ids=str)
def test_it_prints_the_largest_plan_that_the_run_checks(
    program: Program, args: list[str], tmp_path: Path
) -> None:
    name = "t.npz" if args[0] == "embed" else "t.tsv"
    with checked() as plans:
        code = program(*args, "-o", str(tmp_path / name))
    before = sorted(os.listdir())
    assert program(*args, "--dry-run", "-o", str(tmp_path / f"dry-{name}")) == code
    assert program.plan == max(plans, key=lambda plan: plan.total)
    assert sorted(os.listdir()) == before
    assert not list(tmp_path.glob("dry-*"))


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["score", "--fasta", "one.fa"], 4),
        (["score", "--fasta", "one.fa", "--per-position"], 4),
        (["score", "-m", "tiny-en", "-f", "text"], 6),
        (["variants", "--variants", "snv.tsv", "--window", "4000"], 6),
        (["variants", "--variants", "snv.tsv", "-m", "hybrid", "--window", "2000"], 6),
    ],
    ids=str,
)
def test_what_it_says_is_enough_and_less_is_refused(
    program: Program, args: list[str], code: int
) -> None:
    usual = program(*args, "--dry-run")
    plan = program.plan
    assert plan.needed == plan.total - dict(plan.rows)[KEPT]
    for dry in (["--dry-run"], []):
        assert program(*args, *dry, "--max-memory", str(plan.needed)) == usual
        assert "max-memory" not in program.err + program.out
        assert program(*args, *dry, "--max-memory", str(plan.needed - 1)) == code
        refusal = r"this run needs about .* but max-memory is .*: allow at least \d+ KiB"
        assert re.search(refusal, program.err + program.out)
    assert code == 6 or usual == 0


def test_records_that_fail_are_named(program: Program) -> None:
    for command, done in (("score", "scored"), ("embed", "embedded")):
        assert program(command, "--dry-run") == 4
        first, *_, last = program.err.splitlines()
        assert "record 3 ('r2'): '-' at position 3 is no nucleotide code" in first
        count = 1 if command == "score" else 2  # and one that is too long
        assert last == f"hyena-cpu: error: {count} of the records could not be {done}"


def test_variants_that_fail_are_named(program: Program) -> None:
    assert program("variants", "--dry-run") == 4
    first, last = program.err.splitlines()
    assert "variant 1: the reference has" in first
    assert last == "hyena-cpu: error: 1 of the variants could not be scored"


def test_a_run_without_calls_takes_nothing(program: Program, home: Path) -> None:
    (home / "bad.fa").write_text("".join(f">r{i}\nAC-GT\n" for i in range(12)))
    assert program("score", "--fasta", "bad.fa", "--dry-run") == 4
    assert program.plan == Plan(())
    assert len(program.err.splitlines()) == 11  # ten records, and how many there are
    assert program("embed", "--fasta", "bad.fa", "--dry-run") == 4
    assert program.plan == Plan(())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["score", "--resume", "-o", "t.tsv"], "--dry-run writes nothing, so --resume cannot act"),
        (["score", "--plot", "t.png", "--per-position"], "so --plot cannot act"),
        (["variants", "--resume", "-o", "t.tsv"], "so --resume cannot act"),
        (["variants", "--plot", "t.png"], "so --plot cannot act"),
        (["score", "--json", "--format", "csv"], "exclude each other"),
        (["score", "--json"], "so --json cannot act"),
        (["score", "--format", "csv"], "so --format cannot act"),
        (["variants", "--format", "jsonl"], "so --format cannot act"),
        (["embed", "--format", "csv"], "so --format cannot act"),
    ],
)
def test_what_cannot_act_is_refused(program: Program, args: list[str], message: str) -> None:
    assert program(*args, "--dry-run") == 2
    assert program.out == ""
    assert program.err.startswith("hyena-cpu: error: ")
    assert message in program.err
    assert program.err.count("\n") == 1
