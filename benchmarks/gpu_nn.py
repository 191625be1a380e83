"""Tensor-train layers on a GPU: first whether everything is right there, then steps and memory.

    python -m benchmarks.gpu_nn [--device cuda] [--small]

The six-encoder Transformer with batch 1 and length 128: dense with AdamW, dense with gradients
projected to rank 128 (as GaLore does, arXiv:2403.03507), and tensor trains of rank 30 with and
without CUDA graphs; then look-ups in a table of 30522 x 768. Meant for one run of less than 8
minutes; parts that would start later than 7 are left out. `--device cpu --small` runs the same
code on small sizes, without graphs and without memory: a test of the script, not a measurement.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tensoralg.nn import EncoderConfig, TransformerClassifier, TTLinear, TTMEmbedding
from tensoralg.nn.cuda_graphs import GraphedGradients
from tensoralg.nn.fake_quantization import FakeQuantize

BUDGET = 420.0  # seconds after which no part is begun
NO_DEVICE = "No CUDA device that PyTorch can use: nothing was measured."
DENSE = EncoderConfig(vocabulary=30522, classes=2, dropout=0.0)
TRAINS = replace(
    DENSE, attention_rank=30, feed_forward_rank=30, embedding_rank=32,
    attention_shape=(12, 8, 8), feed_forward_shape=(12, 16, 16),
    row_shape=(16, 20, 10, 10), column_shape=(4, 4, 8, 6),
)  # fmt: skip
SMALL_DENSE = EncoderConfig(
    vocabulary=100, classes=2, hidden=32, heads=2, layers=2, feed_forward=64, dropout=0.0
)
SMALL_TRAINS = replace(SMALL_DENSE, attention_rank=4, feed_forward_rank=4, embedding_rank=4)


@dataclass(frozen=True)
class Machine:
    """A device, how to wait for it, and what its memory's peak was."""

    device: torch.device

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def milliseconds(self, call: Callable[[], object], repeats: int) -> float:
        """Median over five rounds of calls; some calls before are not counted."""
        for _ in range(8):  # a graph is recorded after some of them
            call()
        rounds = []
        for _ in range(5):
            self.wait()
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            self.wait()
            rounds.append((time.perf_counter() - begin) / repeats)
        return 1e3 * statistics.median(rounds)

    def peak(self, call: Callable[[], object]) -> str:
        """Peaks of what is allocated and of what is reserved, a graph's own memory included."""
        if not self.cuda:
            return "not measured"
        torch.cuda.reset_peak_memory_stats()
        call()
        self.wait()
        sizes = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return " / ".join(f"{size / 2**20:.0f}" for size in sizes)


class ProjectedAdam:
    """AdamW with the moments of every large matrix in a subspace of its gradient's range.

    The idea of GaLore, in its plain form: the left singular vectors of the gradient, found anew
    every 200 steps; moments of the projected gradient; the step is projected back.
    """

    def __init__(self, parameters: list[nn.Parameter], *, rank: int, rate: float = 1e-3) -> None:
        self.parameters, self.rank, self.rate, self.steps = parameters, rank, rate, 0
        self.bases: dict[nn.Parameter, Tensor] = {}
        self.moments: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        first, second = 1 - 0.9**self.steps, 1 - 0.999**self.steps
        for p in self.parameters:
            if p.grad is None:
                continue
            gradient = p.grad
            projected = gradient.ndim == 2 and min(gradient.shape) > self.rank
            if projected:
                if self.steps % 200 == 1:
                    self.bases[p] = self._basis(gradient)
                basis = self.bases[p]
                gradient = basis.mT @ gradient if self._tall(p) else gradient @ basis
            if p not in self.moments:
                self.moments[p] = torch.zeros_like(gradient), torch.zeros_like(gradient)
            mean, square = self.moments[p]
            mean.lerp_(gradient, 0.1)
            square.lerp_(gradient.square(), 0.001)
            step = (mean / first) / ((square / second).sqrt() + 1e-8)
            if projected:
                basis = self.bases[p]
                step = basis @ step if self._tall(p) else step @ basis.mT
            p.sub_(step, alpha=self.rate)

    def _basis(self, gradient: Tensor) -> Tensor:
        """Leading singular vectors of the smaller side."""
        tall = gradient.shape[0] <= gradient.shape[1]
        left, _, right = torch.svd_lowrank(gradient, q=self.rank)
        return left if tall else right

    @staticmethod
    def _tall(p: nn.Parameter) -> bool:
        return p.shape[0] <= p.shape[1]


def training_step(
    config: EncoderConfig, machine: Machine, kind: str
) -> tuple[Callable[[], Tensor], nn.Module]:
    """One step of training on one sentence of 128 tokens (fewer in a small model)."""
    torch.manual_seed(0)
    model = TransformerClassifier(config).to(machine.device)
    tokens = torch.randint(config.vocabulary, (1, config.positions), device=machine.device)
    label = torch.zeros(1, dtype=torch.int64, device=machine.device)
    parameters = list(model.parameters())
    optimizer: Any
    if kind == "projected":
        optimizer = ProjectedAdam(parameters, rank=min(128, config.hidden // 4))
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=machine.cuda)

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    if kind == "graphs":
        gradients: Callable[[Any], Tensor] = GraphedGradients(loss, parameters)
    else:

        def gradients(batch: tuple[Tensor, Tensor]) -> Tensor:
            for parameter in parameters:
                parameter.grad = None
            value = loss(batch)
            value.backward()
            return value.detach()

    def step() -> Tensor:
        value = gradients((tokens, label))
        optimizer.step()
        return value

    return step, model


def relative_error(a: Tensor, b: Tensor) -> float:
    """Norm of the difference, relative to the second."""
    a, b = a.detach().double().cpu(), b.detach().double().cpu()
    return float(torch.linalg.norm(a - b) / torch.linalg.norm(b).clamp_min(1e-300))


def correctness(machine: Machine) -> list[str]:
    """The device against the host in double precision, and graphs against plain steps."""
    lines = ["| part | relative error | allowed |", "|---|---|---|"]
    torch.manual_seed(0)
    parts: list[tuple[str, nn.Module, Tensor]] = [
        ("TTLinear", TTLinear(96, 192, rank=8), torch.randn(16, 96)),
        ("TTMEmbedding", TTMEmbedding(1000, 64, rank=8), torch.randint(1000, (64,))),
        ("FakeQuantize, 4 bits", FakeQuantize(4), torch.randn(64, 64)),
    ]
    for name, module, x in parts:
        if isinstance(module, FakeQuantize):
            module.initialize(x)
        errors = []
        outputs, gradients = [], []
        for device, dtype in ((machine.device, torch.float32), (torch.device("cpu"), None)):
            module = module.to(device)
            if dtype is None:
                module = module.double()
                x = x.double() if x.is_floating_point() else x
            module.zero_grad()
            own = x.to(device)
            output = module(own)
            output.square().sum().backward()
            outputs.append(output.detach().cpu())
            gradients.append([p.grad.detach().cpu() for p in module.parameters()])
        errors.append(relative_error(*outputs))
        errors += [relative_error(a, b) for a, b in zip(*gradients, strict=True)]
        lines.append(f"| {name}, output and gradients | {max(errors):.1e} | 1e-4 |")
        if not max(errors) < 1e-4:
            raise SystemExit(f"{name} is wrong on {machine.device}: {errors}")
    if machine.cuda:
        lines.append(f"| graphs against plain steps | {graph_error(machine):.1e} | 1e-3 |")
    return lines


def graph_error(machine: Machine) -> float:
    """Difference of the losses after twenty steps with and without graphs."""
    losses = []
    for kind in ("plain", "graphs"):
        step, _ = training_step(SMALL_TRAINS, machine, kind)
        for _ in range(20):
            value = step()
        losses.append(value)
    error = relative_error(losses[1], losses[0])
    if not error < 1e-3:
        raise SystemExit(f"graphs change the training: {losses}")
    return error


def transformer_lines(machine: Machine, dense: Any, trains: Any, start: float) -> list[str]:
    """Step time and peak memory of every way to train."""
    lines = [
        "| six encoders, batch 1 | parameters | ms for a step | peak MiB, allocated / reserved |",
        "|---|---|---|---|",
    ]
    ways = [
        ("dense, AdamW", dense, "plain"),
        ("dense, projected gradients", dense, "projected"),
        ("tensor trains, AdamW", trains, "plain"),
    ]
    if machine.cuda:
        ways += [
            ("dense, AdamW, graphs", dense, "graphs"),
            ("tensor trains, AdamW, graphs", trains, "graphs"),
        ]
    for name, config, kind in ways:
        if time.perf_counter() - start > BUDGET:
            lines.append(f"| {name} | left out: no time | | |")
            continue
        step, model = training_step(config, machine, kind)
        count = sum(p.numel() for p in model.parameters())
        spent = machine.milliseconds(step, 20 if machine.cuda else 2)
        lines.append(f"| {name} | {count} | {spent:.2f} | {machine.peak(step)} |")
        del step, model
        if machine.cuda:
            torch.cuda.empty_cache()
    return lines


def embedding_lines(machine: Machine, small: bool) -> list[str]:
    """Look-ups and their gradients in a large table."""
    rows, columns, count = (1000, 64, 256) if small else (30522, 768, 4096)
    torch.manual_seed(0)
    weights = 1 / torch.arange(1, rows + 1, dtype=torch.float64)
    ids = torch.multinomial(weights, count, replacement=True).to(machine.device)
    lines = [
        f"| {rows} x {columns}, {count} ids | ms | peak MiB, allocated / reserved |",
        "|---|---|---|",
    ]
    for name, layer in (
        ("nn.Embedding", nn.Embedding(rows, columns)),
        ("TTMEmbedding, rank 32", TTMEmbedding(rows, columns, rank=32)),
    ):
        table = layer.to(machine.device)
        optimizer = torch.optim.AdamW(table.parameters(), lr=1e-4, fused=machine.cuda)

        def step(table: nn.Module = table, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            table(ids).square().mean().backward()
            optimizer.step()

        spent = machine.milliseconds(step, 20 if machine.cuda else 2)
        lines.append(f"| {name} | {spent:.2f} | {machine.peak(step)} |")
        del table, layer, optimizer
    return lines


def run(device: str = "cuda", *, small: bool = False) -> str:
    """Check, measure and return Markdown tables."""
    start = time.perf_counter()
    if device == "cuda" and not torch.cuda.is_available():
        return NO_DEVICE
    machine = Machine(torch.device(device))
    dense, trains = (SMALL_DENSE, SMALL_TRAINS) if small else (DENSE, TRAINS)
    name = torch.cuda.get_device_name() if machine.cuda else "CPU: a test of the script only"
    blocks = [[name], correctness(machine), transformer_lines(machine, dense, trains, start)]
    if time.perf_counter() - start < BUDGET:
        blocks.append(embedding_lines(machine, small))
    return "\n\n".join("\n".join(lines) for lines in blocks)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    print(run(arguments.device, small=arguments.small))


if __name__ == "__main__":
    main()
