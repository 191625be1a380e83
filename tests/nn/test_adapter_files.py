"""Adapters in files: what comes back, and which files are refused."""

import copy
import pickle

import pytest
import torch
from torch import nn

from tensoralg.core.errors import PersistenceError
from tensoralg.nn import (
    PELT,
    EncoderConfig,
    TransformerClassifier,
    adapt,
    fix_gates,
    load_adapter,
    merge,
    save_adapter,
    trainable,
)

SIZES = EncoderConfig(40, 3, hidden=12, heads=3, layers=2, feed_forward=20, positions=16)
ALL = PELT(lora=2, adapter=5, prefix=4, prompt=3, train=("classifier",))
TOKENS = torch.tensor([[3, 8, 21, 0], [5, 6, 7, 8]])


def classifier(seed=0):
    torch.manual_seed(seed)
    return TransformerClassifier(SIZES).eval()


def trained(config=ALL):
    model = adapt(classifier(), config)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) / 5)
    return model


@pytest.fixture
def path(tmp_path):
    return tmp_path / "adapter.pt"


@pytest.mark.parametrize(
    "config",
    [
        ALL,
        PELT(lora=2, gate=False, delta_in_shape=(3, 4), delta_out_shape=(4, 3), lora_scale=2.0),
        PELT(train="classifier"),
    ],
)
def test_an_adapter_comes_back_into_the_same_model(path, config):
    model = trained(config)
    save_adapter(model, path)
    fresh = load_adapter(classifier(), path)
    assert torch.equal(fresh(TOKENS), model(TOKENS))
    assert not torch.allclose(fresh(TOKENS), classifier()(TOKENS))
    assert trainable(fresh) == trainable(model)
    assert fresh.pelt_record.config == config
    again = load_adapter(adapt(classifier(), config), path)
    assert torch.equal(again(TOKENS), model(TOKENS))


def test_the_file_holds_the_adapter_alone_and_no_code(path):
    model = adapt(classifier().double(), PELT(lora=1, gate=False))
    save_adapter(model, path)
    stored = torch.load(path, weights_only=True)
    assert sum(w.numel() for w in stored["weights"].values()) == trainable(model)
    assert all("pelt_lora" in name for name in stored["weights"])
    assert path.stat().st_size < 2e4


def test_fixed_gates_come_back_and_can_be_merged(path):
    model = fix_gates(trained(PELT(lora=2)), 0.25)
    save_adapter(model, path)
    fresh = load_adapter(classifier(), path)
    assert torch.equal(fresh(TOKENS), model(TOKENS))
    torch.testing.assert_close(merge(fresh)(TOKENS), model(TOKENS))
    # and after merging the next adapter may come
    assert load_adapter(unmerged := merge(fix_gates(trained(PELT(lora=2)), 0.0)), path) is unmerged


def test_a_model_in_half_precision_is_the_same_model(path):
    save_adapter(trained(), path)
    half = load_adapter(classifier().bfloat16(), path)
    assert half.pelt_prompt.tokens.dtype == torch.bfloat16
    torch.testing.assert_close(half(TOKENS).float(), trained()(TOKENS), atol=0.1, rtol=0.1)


def refused(model, path, words, error=PersistenceError):
    before = copy.deepcopy(model.state_dict())
    required = [p.requires_grad for p in model.parameters()]
    with pytest.raises(error, match=words):
        load_adapter(model, path)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[n]) for n, value in model.state_dict().items())
    assert [p.requires_grad for p in model.parameters()] == required


def test_another_model_is_refused_and_left_alone(path):
    save_adapter(trained(), path)
    refused(classifier(seed=5), path, "belongs to another model: 'embedding.tokens.weight' has n")
    wide = EncoderConfig(40, 3, hidden=24, heads=3, layers=2, feed_forward=20, positions=16)
    refused(TransformerClassifier(wide), path, "has shape .40, 24., not .40, 12.")
    refused(nn.MultiheadAttention(12, 3), path, "this one has no 'embedding.tokens.weight'")
    other = adapt(classifier(), PELT(lora=2))
    refused(other, path, "the model is adapted as", ValueError)
    head = TransformerClassifier(EncoderConfig(40, 5, 12, 3, 2, 20, 16)).eval()
    body = {k: v for k, v in classifier().state_dict().items() if "classifier" not in k}
    head.load_state_dict(body, strict=False)
    refused(head, path, r"'classifier.weight' has shape \(3, 12\) in the file, \(5, 12\)")


def test_what_is_no_adapter_is_refused(path):
    with pytest.raises(FileNotFoundError):
        load_adapter(classifier(), path)
    path.write_bytes(b"no file of torch")
    refused(classifier(), path, "not a readable checkpoint")
    path.write_bytes(pickle.dumps({"format": 1}))
    refused(classifier(), path, "not a readable checkpoint|not a checkpoint of format")
    torch.save(classifier(), path)  # code
    refused(classifier(), path, "not a readable checkpoint")
    torch.save({"format": 1, "kind": "other"}, path)
    refused(classifier(), path, "not a file of save_adapter")


@pytest.mark.parametrize("part", ["config", "gates", "weights", "model"])
@pytest.mark.parametrize("how", ["absent", "none", "wrong", "less"])
def test_broken_files_are_refused(path, part, how):
    save_adapter(trained(), path)
    stored = torch.load(path, weights_only=True)
    if how == "absent":
        del stored[part]
    elif how == "none":
        stored[part] = None
    elif how == "wrong":
        stored[part] = dict.fromkeys(stored[part], "text")
    else:
        if part == "model":
            return  # fewer norms to compare
        stored[part].popitem() if part != "config" else stored[part].update(lora=0)
    torch.save(stored, path)
    refused(classifier(), path, "holds no usable adapter|does not fit")


def test_numbers_that_are_not_finite_are_neither_written_nor_read(path):
    model = trained()
    save_adapter(model, path)
    good = path.read_bytes()
    with torch.no_grad():
        model.pelt_prompt.tokens[0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"pelt_prompt.tokens has NaN or infinite entries"):
        save_adapter(model, path)
    assert path.read_bytes() == good
    stored = torch.load(path, weights_only=True)
    stored["weights"]["pelt_prompt.tokens"][0, 0] = torch.nan
    torch.save(stored, path)
    refused(classifier(), path, "pelt_prompt.tokens has NaN")


def test_a_model_without_adapter_has_nothing_to_save(path):
    with pytest.raises(ValueError, match="not adapted"):
        save_adapter(classifier(), path)
    assert not path.exists()
