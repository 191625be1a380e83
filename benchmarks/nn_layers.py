"""Tensorized layers beside dense ones: time of a training step, of one token, and state.

One thread; CPU time, because other work on the machine does not count in it. The contestants take
turns inside every round, so that a busy moment hits all alike; the table holds the median over
rounds, then over seeds, with the range over seeds.

    python -m benchmarks.nn_layers
"""

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tensoralg.nn import TiedOutput, TTLinear, TTMEmbedding

INPUTS, OUTPUTS = 768, 3072
ROWS, COLUMNS, LOOKUPS = 30522, 768, 4096

Step = Callable[[], object]


def race(contestants: dict[str, Step], rounds: int) -> dict[str, float]:
    """Median CPU milliseconds of each contestant, taking turns; the first two rounds warm up."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 2):
        for name, step in contestants.items():
            start = time.process_time()
            step()
            if turn > 1:
                times[name].append(time.process_time() - start)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, gradient: Tensor
) -> Step:
    """Forward, backward to parameters and, for real inputs, to the input, and an update."""

    def step() -> None:
        optimizer.zero_grad()
        x.grad = None
        model(x).backward(gradient)
        optimizer.step()

    return step


def peer_linear(rank: int) -> nn.Module | None:
    """TensorLy-Torch's layer, if it is installed (extra `peers`)."""
    if importlib.util.find_spec("tltorch") is None:
        return None
    import tltorch

    layer: nn.Module = tltorch.FactorizedLinear(
        (12, 8, 8), (12, 16, 16), factorization="blocktt", rank=rank
    )
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.1)
    return layer


def linear_steps(tokens: int, seed: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a step of every linear layer."""
    torch.manual_seed(seed)
    x = torch.randn(tokens, INPUTS, requires_grad=True)
    gradient = torch.randn(tokens, OUTPUTS)
    models: dict[str, nn.Module | None] = {"nn.Linear": nn.Linear(INPUTS, OUTPUTS)}
    models |= {f"TTLinear r={r}": TTLinear(INPUTS, OUTPUTS, rank=r) for r in (16, 32, 64, 128)}
    models |= {f"tltorch blocktt r={r}": peer_linear(r) for r in (16, 32)}
    contestants = {
        name: training_step(model, torch.optim.AdamW(model.parameters()), x, gradient)
        for name, model in models.items()
        if model is not None
    }
    return race(contestants, rounds)


def one_token(seed: int, rounds: int) -> dict[str, float]:
    """Milliseconds of the forward pass of one token in eval mode."""
    torch.manual_seed(seed)
    x = torch.randn(1, INPUTS)
    models = {"nn.Linear": nn.Linear(INPUTS, OUTPUTS)}
    models |= {f"TTLinear r={r}": TTLinear(INPUTS, OUTPUTS, rank=r) for r in (16, 32, 64, 128)}

    def many(model: nn.Module) -> Step:
        def step() -> None:
            for _ in range(20):
                model(x)

        return step

    with torch.inference_mode():
        contestants = {name: many(model.eval()) for name, model in models.items()}
        return {name: value / 20 for name, value in race(contestants, rounds).items()}


def zipf_ids(seed: int) -> Tensor:
    """Row numbers as frequent as words are."""
    generator = torch.Generator().manual_seed(seed)
    frequencies = 1.0 / torch.arange(1, ROWS + 1, dtype=torch.float64)
    return torch.multinomial(frequencies, LOOKUPS, replacement=True, generator=generator)


def state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of parameters and optimizer state."""
    held = list(model.parameters())
    for state in optimizer.state.values():
        held += [value for value in state.values() if torch.is_tensor(value)]
    return sum(value.numel() * value.element_size() for value in held)


def lookups(seed: int, rounds: int) -> tuple[dict[str, float], dict[str, int]]:
    """Milliseconds of a step of every embedding, and bytes of state."""
    torch.manual_seed(seed)
    ids, gradient = zipf_ids(seed), torch.randn(LOOKUPS, COLUMNS)
    sparse = nn.Embedding(ROWS, COLUMNS, sparse=True)
    dense, train = nn.Embedding(ROWS, COLUMNS), TTMEmbedding(ROWS, COLUMNS, rank=32)
    pairs: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {
        "nn.Embedding, sparse gradient, SparseAdam": (
            sparse,
            torch.optim.SparseAdam(list(sparse.parameters())),
        ),
        "nn.Embedding, AdamW": (dense, torch.optim.AdamW(dense.parameters())),
        "TTMEmbedding r=32, AdamW": (train, torch.optim.AdamW(train.parameters())),
    }
    contestants = {
        name: training_step(model, optimizer, ids, gradient)
        for name, (model, optimizer) in pairs.items()
    }
    times = race(contestants, rounds)
    return times, {name: state_bytes(*pair) for name, pair in pairs.items()}


class WholeTable(TiedOutput):
    """The tied output as it would be without merged tables."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return nn.functional.linear(input, self.weight, self.bias)


def tied_outputs(tokens: int, seed: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a step of every output layer over the vocabulary."""
    torch.manual_seed(seed)
    x = torch.randn(tokens, COLUMNS, requires_grad=True)
    gradient = torch.randn(tokens, ROWS)
    models: dict[str, nn.Module] = {
        "nn.Linear": nn.Linear(COLUMNS, ROWS, bias=False),
        "TiedOutput r=32": TiedOutput(TTMEmbedding(ROWS, COLUMNS, rank=32)),
        "the same, whole table": WholeTable(TTMEmbedding(ROWS, COLUMNS, rank=32)),
    }
    contestants = {
        name: training_step(model, torch.optim.AdamW(model.parameters()), x, gradient)
        for name, model in models.items()
    }
    return race(contestants, rounds)


def initial_sizes(seed: int) -> tuple[float, float]:
    """Smallest and largest ratio of the output's standard deviation to the dense layer's."""
    torch.manual_seed(seed)
    x = torch.randn(4096, 784)
    dense = float(nn.Linear(784, 512, bias=False)(x).std().detach())
    ratios = []
    for order in (1, 2, 3, 4):
        for rank in (1, 2, 4, 8, 32):
            layer = TTLinear(784, 512, rank=rank, in_shape=order, out_shape=order, bias=False)
            ratios.append(float(layer(x).std().detach()) / dense)
    return min(ratios), max(ratios)


def summary(values: list[float], digits: int = 2) -> str:
    """Median and range."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} .. {high:.{digits}f})"


def columns(results: list[dict[str, float]], first: str, digits: int = 2) -> list[str]:
    """Lines of a table: milliseconds, and how many times faster than the first contestant."""
    lines = []
    for name in results[0]:
        ratios = [result[first] / result[name] for result in results]
        times = summary([result[name] for result in results], digits)
        lines.append(f"| {name} | {times} | {summary(ratios)} |")
    return lines


def run(seeds: int = 3, rounds: int = 11) -> str:
    """Measure everything and return Markdown tables."""
    torch.set_num_threads(1)
    lines = ["## Tensorized layers", "", f"Median over {seeds} seeds (range), CPU ms, one thread."]
    for tokens in (32, 512, 2048):
        results = [linear_steps(tokens, seed, rounds) for seed in range(seeds)]
        lines += [
            "",
            f"### {INPUTS}x{OUTPUTS}, {tokens} tokens, forward + backward + AdamW",
            "",
            "| layer | ms | times nn.Linear's speed |",
            "|---|---|---|",
            *columns(results, "nn.Linear"),
        ]
    results = [one_token(seed, 5 * rounds) for seed in range(seeds)]
    lines += [
        "",
        "### One token, eval mode",
        "",
        "| layer | ms | times nn.Linear's speed |",
        "|---|---|---|",
        *columns(results, "nn.Linear", 3),
    ]
    measured = [lookups(seed, rounds) for seed in range(seeds)]
    sparse = "nn.Embedding, sparse gradient, SparseAdam"
    sizes = measured[0][1]
    lines += [
        "",
        f"### {ROWS}x{COLUMNS}, {LOOKUPS} Zipf ids, forward + backward + update",
        "",
        "| embedding | ms | times sparse nn.Embedding's speed | state, MiB | times less state |",
        "|---|---|---|---|---|",
    ]
    for line, name in zip(columns([times for times, _ in measured], sparse), sizes, strict=True):
        lines.append(f"{line} {sizes[name] / 2**20:.2f} | {sizes[sparse] / sizes[name]:.0f} |")
    results = [tied_outputs(64, seed, rounds) for seed in range(seeds)]
    lines += [
        "",
        f"### Logits of {ROWS} rows, 64 tokens, forward + backward + AdamW",
        "",
        "| layer | ms | times nn.Linear's speed |",
        "|---|---|---|",
        *columns(results, "nn.Linear"),
    ]
    ranges = [initial_sizes(seed) for seed in range(seeds)]
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    lines += [
        "",
        "Initial output's standard deviation over the dense layer's, 784x512, orders 1-4, "
        f"ranks 1-32, {seeds} seeds: {low:.2f} .. {high:.2f}.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=11, help="rounds per seed")
    arguments = parser.parse_args()
    print(run(arguments.seeds, arguments.rounds))


if __name__ == "__main__":
    main()
