"""The trainer of the bundled models: options, schedule, optimizers, checkpoints, log."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from text_model import Shape, TextModel, total_nats
from text_optim import Muon
from torch import Tensor
from torch.nn import functional
from windows import WindowSampler

SAVE_EVERY = 60  # seconds of training between checkpoints
PLACES = (
    "data",
    "out",
    "work",
    "device",
    "threads",
    "resume",
    "log_every",
)  # options outside the recipe


@dataclass(frozen=True)
class Task:
    """What a run trains on and is measured by."""

    shape: Shape
    sampler: WindowSampler
    held_out: tuple[Tensor, Tensor]  # inputs and targets [windows, L]; -100 is not scored
    held_out_units: int
    unit: str  # of the text, for bits per unit: byte or base


def parse_arguments(
    description: str | None, defaults: dict[str, Any], layers: str | None = None
) -> argparse.Namespace:
    """The command line of a training tool; `defaults` name the recipe and the work folder.

    With `layers`, the letters of a Shape, other letters can be chosen by --layers.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("HYENA_CPU_DATA"), help="$HYENA_CPU_DATA")
    add("--out", type=Path, required=True, help="model folder to write")
    add("--work", type=Path, help="checkpoints and log")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--threads", type=int, default=torch.get_num_threads())
    add("--resume", action="store_true", help="continue from the checkpoint in --work")
    add("--log-every", type=int, default=100, help="steps; reading the loss waits for the device")
    recipe = parser.add_argument_group("recipe (defaults: the shipped model)")
    add = recipe.add_argument
    add("--seed", type=int, default=0)
    add("--tokens", type=float, help="tokens to train on; may change at --resume before the decay")
    add("--batch", type=int, help="tokens in a step")
    add("--context", type=int, default=512)
    add("--long-context", type=int, default=1024, help="context at the end of the run")
    add("--long-share", type=float, default=0.2, help="share of the tokens at --long-context")
    add("--muon-lr", type=float, help="projections")
    add("--adam-lr", type=float, help="embedding, filters, vectors")
    add("--weight-decay", type=float, default=0.01, help="projections")
    add("--dropout", type=float, help="on what a mixer or MLP adds")
    add("--warmup", type=int, default=60, help="steps")
    add("--flat-share", type=float, default=0.4, help="share of the tokens before the rate falls")
    add("--clip", type=float, default=1.0, help="largest gradient norm")
    add("--plain-share", type=float, default=0.1, help="share of windows without first token")
    add("--precision", choices=("bfloat16", "float32"))
    add("--evaluations", type=int, help="held-out measurements")
    if layers is not None:
        add(
            "--layers",
            type=layer_letters,
            default=layers,
            help="a letter each: H Hyena, A attention",
        )
    parser.set_defaults(**defaults)
    options = parser.parse_args()
    if options.data is None:
        parser.error("name the data folder: --data DIR, or HYENA_CPU_DATA in the environment")
    return options


def layer_letters(text: str) -> str:
    """Checks --layers."""
    if not text or set(text) - set("HA"):
        raise argparse.ArgumentTypeError(f"{text!r} is not made of the letters H and A")
    return text


def learning_rate_factor(share: float, step: int, warmup: int, flat: float) -> float:
    """Linear warm-up, flat for a share of the run, then linear to 5 %; `share` of it is done."""
    falling = 0.05 + 0.95 * min(1.0, (1.0 - share) / (1.0 - flat))
    return min(1.0, (step + 1) / warmup) * falling


def replace_file(path: Path, write: Any) -> None:
    """Calls write(temporary path) and renames, so that `path` is always whole."""
    temporary = path.with_name(path.name + ".part")
    write(temporary)
    os.replace(temporary, path)


class Trainer:
    """Model, optimizers and position of one run; everything that a checkpoint holds."""

    def __init__(self, options: argparse.Namespace, task: Task):
        self.options = options
        self.device = options.device
        self.recipe = {k: v for k, v in vars(options).items() if k not in PLACES}
        torch.manual_seed(options.seed)
        self.model = TextModel(task.shape, options.dropout).to(self.device)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        matrices = [p for _, p in self.model.block_matrices()]
        known = {id(p) for p in matrices}
        others = [p for p in self.model.parameters() if id(p) not in known]
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=options.muon_lr, weight_decay=options.weight_decay),
            torch.optim.AdamW(
                others, lr=options.adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
            ),
        ]
        self.rates = [options.muon_lr, options.adam_lr]
        self.task = task
        self.sampler = task.sampler
        self.seen = self.step = 0
        self.best = math.inf
        self.seconds = self.saved = 0.0
        self.log = options.work / "log.jsonl"
        self.graph: torch.cuda.CUDAGraph | None = None
        self.graph_inputs = self.graph_targets = self.graph_loss = torch.empty(0)

    def autocast(self) -> torch.autocast:
        kind = torch.device(self.device).type
        enabled = self.options.precision == "bfloat16"
        # No cache of casts: a CUDA graph must cast the weights at every replay.
        return torch.autocast(kind, torch.bfloat16, enabled=enabled, cache_enabled=False)

    def now(self) -> float:
        """Seconds: of the process on a CPU, so that other work and pauses do not count."""
        return time.monotonic() if self.device.startswith("cuda") else time.process_time()

    def train_step(self) -> Tensor:
        """One step; returns its loss in nats a token, still on the device."""
        options = self.options
        share = self.seen / options.tokens
        context = options.context if share < 1 - options.long_share else options.long_context
        factor = learning_rate_factor(share, self.step, options.warmup, options.flat_share)
        for optimizer, rate in zip(self.optimizers, self.rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
        inputs, targets = self.sampler.draw(options.batch // context, context)
        loss = self.backward(inputs, targets)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), options.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1
        self.seen += targets.numel()
        return loss

    def backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Leaves the gradients of one batch in the parameters and returns its loss."""

        def run() -> Tensor:
            self.model.zero_grad(set_to_none=True)
            with self.autocast():
                logits = self.model(inputs)
            loss = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        if not inputs.is_cuda:
            return run()
        # A step launches a thousand small kernels: recorded once a shape, then replayed.
        if self.graph is None or self.graph_inputs.shape != inputs.shape:
            inputs, targets = inputs.clone(), targets.clone()
            self.graph_inputs, self.graph_targets = inputs, targets
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):  # libraries make their plans and workspaces outside the record
                    run()
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            self.model.zero_grad(set_to_none=True)
            with torch.cuda.graph(self.graph):
                self.graph_loss = run()
        self.graph_inputs.copy_(inputs)
        self.graph_targets.copy_(targets)
        self.graph.replay()
        return self.graph_loss

    def evaluate(self) -> float:
        """Held-out bits a unit, in the precision of the training."""
        with self.autocast():
            nats = total_nats(self.model, *self.task.held_out)
        return nats / math.log(2) / self.task.held_out_units

    def record(self, **values: Any) -> None:
        entry = {"tokens": self.seen, "step": self.step, **values}
        entry["seconds"] = round(self.seconds, 1)
        with self.log.open("a") as stream:
            print(json.dumps(entry), file=stream)
        print(json.dumps(entry), flush=True)

    def run(self) -> None:
        """Trains to the end of the budget; best.safetensors holds the best weights, float16."""
        options = self.options
        spacing = options.tokens / options.evaluations
        loss_sum, loss_steps = torch.zeros((), device=self.device), 0
        clock = self.now()
        self.model.train()
        while self.seen < options.tokens:
            loss_sum += self.train_step()
            loss_steps += 1
            at_end = self.seen >= options.tokens
            measure = at_end or self.seen // spacing != (self.seen - options.batch) // spacing
            if self.step % options.log_every == 0:
                loss = float(loss_sum) / loss_steps
                if not math.isfinite(loss):
                    raise FloatingPointError(f"loss is {loss} at step {self.step}")
                loss_sum, loss_steps = torch.zeros_like(loss_sum), 0
                self.seconds += self.now() - clock
                clock = self.now()
                self.record(loss=round(loss, 4))
                if not measure and self.seconds - self.saved > SAVE_EVERY:
                    self.save_checkpoint()
            if measure:
                bits = self.evaluate()
                self.seconds += self.now() - clock
                clock = self.now()
                self.record(**{f"held_out_bits_per_{self.task.unit}": round(bits, 5)})
                if bits < self.best:
                    self.best = bits
                    self.save_weights()
                self.save_checkpoint()

    def save_weights(self) -> None:
        state = self.model.state_dict()
        weights = {name: value.half().contiguous().cpu() for name, value in state.items()}
        replace_file(self.options.work / "best.safetensors", lambda p: save_file(weights, p))

    def save_checkpoint(self) -> None:
        state = {
            "recipe": self.recipe,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "windows": self.sampler.generator.get_state(),
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state_all(),
            "position": [self.seen, self.step, self.best, self.seconds],
        }
        replace_file(self.options.work / "checkpoint.pt", lambda p: torch.save(state, p))
        self.saved = self.seconds

    def load_checkpoint(self) -> None:
        state = torch.load(self.options.work / "checkpoint.pt", map_location="cpu")
        self.check_recipe(state["recipe"], seen=state["position"][0])
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.sampler.generator.set_state(state["windows"])
        torch.set_rng_state(state["random"])
        if state["cuda_random"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda_random"])
        self.seen, self.step, self.best, self.seconds = state["position"]
        self.saved = self.seconds
        # What an interrupted run logged after its checkpoint will be logged again.
        entries = self.log.read_text().splitlines(keepends=True)
        kept = [line for line in entries if json.loads(line)["tokens"] <= self.seen]
        self.log.write_text("".join(kept))

    def check_recipe(self, earlier: dict[str, Any], seen: int) -> None:
        """Stops unless the run so far would have been the same under the recipe of today."""
        now = self.recipe
        free = dict.fromkeys(("tokens", "flat_share", "evaluations"))
        if {**earlier, **free} != {**now, **free}:
            raise SystemExit(f"--resume: the checkpoint was made with {earlier}")
        same = all(earlier[key] == now[key] for key in ("tokens", "flat_share"))
        steady = min(
            recipe["tokens"] * min(recipe["flat_share"], 1 - recipe["long_share"])
            for recipe in (earlier, now)
        )
        if not same and seen - now["batch"] > steady:
            raise SystemExit(
                f"--resume: after {seen} tokens of {earlier['tokens']:.0f} the schedule cannot "
                "change; it can while the learning rate and the context are those of the start"
            )


def train(options: argparse.Namespace, task: Task, write_folder: Callable[..., None]) -> None:
    """Runs or resumes a training, then write_folder(work, data, out) with its best weights."""
    trainer = Trainer(options, task)
    if options.resume:
        trainer.load_checkpoint()
    else:
        trainer.log.unlink(missing_ok=True)
    name = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    trainer.record(
        recipe=trainer.recipe,
        device=name,
        threads=options.threads,
        parameters=trainer.parameters,
        training_tokens=len(trainer.sampler.tokens),
    )
    trainer.run()
    write_folder(options.work, options.data, options.out)
