"""Sentences of four domains: a MiniLM teacher, and a tensor-train student with 4-bit cores.

    python -m benchmarks.nn_sentences [--folder DIR] [--teacher-epochs E] [--epochs E] [--seed S]
        [--attention RANK] [--feed-forward RANK] [--embedding RANK] [--bits B]

A long run: the teacher takes about ten minutes of one core for an epoch, the student as long.
Both write checkpoints into the folder and go on from them when the program is started again.
Reviews and articles are for learning (90 %) or for testing as a whole; nothing is chosen on the
latter. The student starts as the teacher's factorised weights, then learns layer by layer, the
lower ones first: hidden states and attention maps, at the end the classes and the teacher's
probabilities, with quantizers in place from the beginning.
"""

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.nn_data import DOMAINS, minilm, sentences, tokenized
from tensoralg.nn.distillation import LayerPair, active_layers, distill, soft_label_loss
from tensoralg.nn.evaluation import accuracy, evaluate
from tensoralg.nn.quantization_aware import export_codes, prepare_qat
from tensoralg.nn.training import fit
from tensoralg.nn.transformer import EncoderConfig, TransformerClassifier
from tensoralg.nn.tt_embedding import TTMEmbedding
from tensoralg.nn.tt_linear import TTLinear

BATCH = 32
SHAPE = (16, 24)  # of 384 hidden units
WIDE = (32, 48)  # of 1536 inside a block


class Bucketed:
    """Batches of sentences of similar length, cut to the longest; a new order in every epoch."""

    def __init__(self, tokens: Tensor, lengths: Tensor, labels: Tensor, *, shuffle: bool) -> None:
        self.tokens, self.lengths, self.labels = tokens, lengths, labels
        self.shuffle = shuffle

    def __len__(self) -> int:
        return -(-len(self.labels) // BATCH)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        order = torch.randperm(len(self.labels)) if self.shuffle else self.lengths.argsort()
        batches: list[Tensor] = []
        for group in order.split(50 * BATCH):
            batches += group[self.lengths[group].argsort()].split(BATCH)
        places = torch.randperm(len(batches)) if self.shuffle else torch.arange(len(batches))
        for place in places.tolist():
            rows = batches[place]
            tokens = self.tokens[rows, : int(self.lengths[rows].max())]
            yield tokens, tokens != 0, self.labels[rows]


def load_data() -> tuple[Bucketed, Bucketed]:
    """Batches to learn from and to test with."""
    texts, labels, testing = sentences()
    tokens, lengths = tokenized(texts)
    target, test = torch.from_numpy(labels), torch.from_numpy(testing)
    learn = Bucketed(tokens[~test], lengths[~test], target[~test], shuffle=True)
    return learn, Bucketed(tokens[test], lengths[test], target[test], shuffle=False)


def decaying(optimizer: torch.optim.Optimizer, total: int, *, hold: int = 0, last: float = 0.02):
    """Warm up over 50 steps, hold, then fall along a cosine to a part of the rate."""

    def factor(step: int) -> float:
        if step <= hold:
            return min(1.0, (step + 1) / 50)
        part = min(1.0, (step - hold) / max(1, total - hold))
        return last + (1 - last) * (1 + math.cos(math.pi * part)) / 2

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def train_teacher(folder: Path, learn: Bucketed, epochs: int, seed: int) -> TransformerClassifier:
    """MiniLM, fine-tuned."""
    torch.manual_seed(seed)
    teacher = minilm(len(DOMAINS))
    head = list(teacher.classifier.parameters())
    body = [p for n, p in teacher.named_parameters() if not n.startswith("classifier")]
    groups = [{"params": body, "lr": 5e-5}, {"params": head, "lr": 1e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    fit(
        teacher, learn, optimizer, epochs=epochs, max_gradient_norm=1.0, progress=True,
        schedule=decaying(optimizer, epochs * len(learn)),
        checkpoint=folder / f"teacher-{epochs}-{seed}.pt", checkpoint_every=100,
    )  # fmt: skip
    return teacher


@dataclass(frozen=True)
class Student:
    """Ranks and bits."""

    attention: int = 30
    feed_forward: int = 30
    embedding: int = 60
    bits: int = 4

    def build(self, teacher: TransformerClassifier) -> TransformerClassifier:
        """The teacher's architecture in tensor trains; what can be taken over is."""
        config: EncoderConfig = replace(
            teacher.config,
            dropout=0.0,
            attention_rank=self.attention,
            feed_forward_rank=self.feed_forward,
            embedding_rank=self.embedding,
            attention_shape=SHAPE,
            feed_forward_shape=WIDE,
            row_shape=(175, 175),
            column_shape=SHAPE,
        )
        student = TransformerClassifier(config)
        theirs = dict(teacher.named_modules())
        for name, module in student.named_modules():
            if isinstance(module, TTLinear):
                factorised = TTLinear.from_linear(
                    theirs[name], rank=module.ranks, in_shape=module.in_shape,
                    out_shape=module.out_shape,
                )  # fmt: skip
                module.load_state_dict(factorised.state_dict())
            elif isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding):
                module.load_state_dict(theirs[name].state_dict())
            elif isinstance(module, TTMEmbedding):
                table = theirs[name].weight.detach()
                with torch.no_grad():  # of the table's size; a factorised table is no better
                    for core in module.cores:
                        core.mul_(float(table.std()) ** (1 / len(module.cores)))
        return student


def layer_pairs(layers: int) -> list[list[LayerPair]]:
    """The embedding, then every block's attention map and output."""
    pairs = [[LayerPair("embedding", "embedding")]]
    for k in range(layers):
        attention = f"blocks.{k}.attention.probabilities"
        block = LayerPair(f"blocks.{k}", f"blocks.{k}")
        pairs.append([LayerPair(attention, attention, "attention"), block])
    return pairs


class StudentLoss:
    """Layer by layer at first; classes and the teacher's probabilities when all are in."""

    def __init__(self, teacher: TransformerClassifier, first: int, every: int) -> None:
        self.teacher, self.first, self.every, self.steps = teacher, first, every, 0
        self.pairs = layer_pairs(teacher.config.layers)

    def __call__(self, student: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        tokens, mask, labels = batch
        # the embedding alone is cheap and has most to learn: longer than a block
        later = self.steps - self.first
        blocks = active_layers(later, len(self.pairs) - 1, every=self.every) if later >= 0 else 0
        active = 1 + blocks
        self.steps += 1
        found = distill(student, self.teacher, self.pairs, (tokens, mask), active=active, mask=mask)
        if found.output is None:
            return found.loss
        task = nn.functional.cross_entropy(found.output, labels)
        return found.loss + task + soft_label_loss(found.output, found.teacher_output)

    def step(self) -> None:
        """Nothing: the steps are counted by the calls; `fit` stores the state."""

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def train_student(
    folder: Path, teacher: TransformerClassifier, learn: Bucketed, settings: Student,
    epochs: int, every: int, seed: int,
) -> TransformerClassifier:  # fmt: skip
    """The student with quantizers, distilled."""
    torch.manual_seed(seed)
    student = settings.build(teacher)
    tokens, mask, _ = next(iter(learn))
    prepare_qat(student, settings.bits, sample=(tokens, mask))
    scales = [p for n, p in student.named_parameters() if n.endswith("log_scale")]
    weights = [p for n, p in student.named_parameters() if not n.endswith("log_scale")]
    groups = [{"params": weights, "lr": 2e-3}, {"params": scales, "lr": 2e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    loss = StudentLoss(teacher, len(learn), every)
    hold = loss.first + every * (len(loss.pairs) - 2)
    fit(
        student, learn, optimizer, epochs=epochs, loss=loss, rank_scheduler=loss,
        max_gradient_norm=10.0, progress=True,
        schedule=decaying(optimizer, epochs * len(learn), hold=hold),
        checkpoint=folder / f"student-{settings.attention}-{settings.embedding}-{epochs}-{seed}.pt",
        checkpoint_every=100,
    )  # fmt: skip
    return student


def run(
    folder: Path | None = None, *, teacher_epochs: int = 1, epochs: int = 3, every: int = 60,
    seed: int = 0, settings: Student | None = None, teacher_state: Path | None = None,
) -> str:  # fmt: skip
    """Train both and return a Markdown table."""
    torch.set_num_threads(1)
    folder = folder or Path("benchmarks") / "results" / "sentences"
    folder.mkdir(parents=True, exist_ok=True)
    settings = settings or Student()
    learn, test = load_data()
    start = time.process_time()
    if teacher_state is None:
        teacher = train_teacher(folder, learn, teacher_epochs, seed)
    else:
        teacher = minilm(len(DOMAINS))
        teacher.load_state_dict(torch.load(teacher_state, weights_only=True))
    middle = time.process_time()
    student = train_student(folder, teacher, learn, settings, epochs, every, seed)
    end = time.process_time()
    coded = export_codes(student)
    halved = export_codes(student, rest_dtype=torch.float16)
    again = settings.build(teacher)
    prepare_qat(again, settings.bits)
    again.load_state_dict(halved.state_dict())
    whole = sum(p.numel() * p.element_size() for p in teacher.parameters())
    rows = [
        ("MiniLM, fine-tuned", teacher, whole, middle - start),
        ("student, other numbers in float32", student, coded.size_bytes, end - middle),
        ("student, other numbers in float16", again, halved.size_bytes, 0.0),
    ]
    table = [
        "| model | bytes | times smaller | test accuracy | CPU s of this run |",
        "|---|---|---|---|---|",
    ]
    for name, model, size, seconds in rows:
        share = evaluate(model, test, {"accuracy": accuracy})["accuracy"]
        table.append(f"| {name} | {size} | {whole / size:.1f} | {share:.4f} | {seconds:.0f} |")
    head = f"{len(learn.labels)} sentences to learn from, {len(test.labels)} to test, seed {seed}; "
    head += f"{settings}, {teacher_epochs} and {epochs} epochs; the embedding alone for one epoch, "
    head += f"then one more block every {every} steps."
    return "\n".join([head, "", *table])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--teacher-epochs", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--every", type=int, default=60)
    parser.add_argument("--teacher", type=Path, help="a state that was trained before")
    parser.add_argument("--seed", type=int, default=0)
    usual = Student()
    for name in ("attention", "feed_forward", "embedding", "bits"):
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=getattr(usual, name), help="of the student")
    a = parser.parse_args()
    settings = Student(a.attention, a.feed_forward, a.embedding, a.bits)
    print(run(a.folder, teacher_epochs=a.teacher_epochs, epochs=a.epochs, every=a.every,
              seed=a.seed, settings=settings, teacher_state=a.teacher))  # fmt: skip


if __name__ == "__main__":
    main()
