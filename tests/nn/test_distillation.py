"""Layer-wise distillation: the formulas, what is computed, what is refused; a short whole run."""

import pytest
import torch
from torch import nn

from tensoralg.core.errors import ShapeError
from tensoralg.nn import (
    EncoderConfig,
    LayerPair,
    TransformerClassifier,
    active_layers,
    distill,
    export_codes,
    prepare_qat,
    soft_label_loss,
)
from tensoralg.nn.training import accuracy, evaluate, fit

SIZES = EncoderConfig(
    vocabulary=60, classes=3, hidden=16, heads=2, layers=2, feed_forward=32, positions=10,
    dropout=0.1,
)  # fmt: skip
TRAINS = EncoderConfig(
    vocabulary=60, classes=3, hidden=16, heads=2, layers=2, feed_forward=32, positions=10,
    dropout=0.0, attention_rank=8, feed_forward_rank=8, embedding_rank=8,
    attention_shape=(4, 4), feed_forward_shape=(4, 8), row_shape=(8, 8), column_shape=(4, 4),
)  # fmt: skip
PAIRS = [
    ("embedding", "embedding"),
    *(
        [(f"blocks.{k}.attention.probabilities",) * 2 + ("attention",), (f"blocks.{k}",) * 2]
        for k in range(2)
    ),
]


def sentences(count=240, seed=0):
    """Sentences of three kinds: each kind has words of its own among common ones."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    tokens = torch.randint(31, 60, (count, 10), generator=generator)
    for row, label in enumerate(labels.tolist()):
        places = torch.randperm(5, generator=generator)[:2]
        tokens[row, places] = 1 + 10 * label + torch.randint(10, (2,), generator=generator)
    lengths = torch.randint(5, 11, (count,), generator=generator)
    mask = torch.arange(10) < lengths[:, None]
    return tokens * mask, mask, labels


def models():
    torch.manual_seed(0)
    return TransformerClassifier(TRAINS), TransformerClassifier(SIZES)


def test_the_loss_of_hidden_states_is_that_of_the_formula():
    teacher, student = nn.Linear(4, 3), nn.Linear(4, 3)
    x = torch.randn(2, 5, 4)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    found = distill(student, teacher, [LayerPair("", "")], x, mask=mask)
    ours, theirs = student(x), teacher(x)
    terms = []
    for b, t in mask.nonzero().tolist():
        a, c = ours[b, t], theirs[b, t]
        cosine = (a @ c) / (a.norm() * c.norm())
        terms.append(((a - c) ** 2).mean() + 1 - cosine)
    expected = torch.stack(terms).mean()
    assert len(terms) == 7
    assert torch.allclose(found.loss, expected)
    assert torch.equal(found.output, ours)
    assert torch.equal(found.teacher_output, theirs)
    found.loss.backward()
    assert student.weight.grad.abs().sum() > 0
    assert teacher.weight.grad is None


def test_the_loss_of_attention_maps_is_the_divergence_from_the_teacher():
    teacher, student = nn.Softmax(dim=-1), nn.Sequential(nn.Identity(), nn.Softmax(dim=-1))
    x = torch.randn(2, 3, 4, 4)
    teacher.register_forward_pre_hook(lambda m, inputs: (inputs[0] * 2,))
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    found = distill(student, teacher, [("1", "", "attention")], x, mask=mask)
    p, q = (2 * x).softmax(-1), x.softmax(-1)
    each = (p * (p / q).log()).sum(-1).mean(1)
    assert torch.allclose(found.loss, each[mask].mean(), atol=1e-6)
    same = distill(teacher, teacher, [("", "", "attention")], x)
    assert same.loss.item() == pytest.approx(0.0, abs=1e-6)


def test_lower_layers_come_first_and_the_rest_is_not_computed():
    student, teacher = models()
    tokens, mask, _ = sentences(6)
    ran = []
    for role, model in (("student", student), ("teacher", teacher)):
        for name in ("embedding", "blocks.0", "blocks.1", "classifier"):
            model.get_submodule(name).register_forward_pre_hook(
                lambda m, i, role=role, name=name: ran.append((role, name))
            )
    whole = distill(student, teacher, PAIRS, (tokens, mask), mask=mask)
    assert len(whole.losses) == 3
    assert whole.output.shape == (6, 3)
    student.eval()  # same numbers: no dropout in the student anyway
    for active in (1, 2):
        ran.clear()
        found = distill(student, teacher, PAIRS, (tokens, mask), active=active, mask=mask)
        assert found.output is None
        assert len(found.losses) == active
        assert [name for role, name in ran if role == "student"] == [
            "embedding", "blocks.0", "blocks.1"][:active]  # fmt: skip
        assert len(ran) == 2 * active
        for a, b in zip(found.losses, whole.losses, strict=False):
            assert torch.allclose(a, b, atol=1e-6)
    assert not any(len(m._forward_hooks) for m in student.modules())
    assert not any(len(m._forward_hooks) for m in teacher.modules())


def test_padding_does_not_count():
    student, teacher = models()
    tokens, mask, _ = sentences(6)
    other = torch.where(mask, tokens, torch.randint(1, 60, tokens.shape))
    first = distill(student, teacher, PAIRS, (tokens, mask), mask=mask)
    second = distill(student, teacher, PAIRS, (other, mask), mask=mask)
    assert torch.allclose(first.loss, second.loss, rtol=1e-5)


def test_the_teachers_flags_are_put_back_and_its_dropout_is_off():
    student, teacher = models()
    teacher.train()
    teacher.blocks[1].eval()
    tokens, mask, _ = sentences(6)
    a = distill(student, teacher, PAIRS, {"tokens": tokens, "mask": mask})
    b = distill(student, teacher, PAIRS, {"tokens": tokens, "mask": mask})
    assert torch.equal(a.loss, b.loss)
    assert teacher.training
    assert teacher.blocks[0].training
    assert not teacher.blocks[1].training


def test_what_does_not_fit_is_named():
    student, teacher = models()
    tokens, mask, _ = sentences(6)
    for pairs, message in (
        ([], "at least one entry"),
        ([("nothing", "embedding")], "the student has no module named 'nothing'"),
        ([("embedding", "blocks.7")], "the teacher has no module named 'blocks.7'"),
        ([3], "must be a LayerPair, a tuple of names or a list; got 3"),
        ([("embedding", "embedding", "other")], "kind must be one of hidden, attention"),
        ([("blocks.0", "blocks")], "'blocks' did not run"),
    ):
        with pytest.raises(ValueError, match=message):
            distill(student, teacher, pairs, (tokens, mask))
    with pytest.raises(ValueError, match="active must lie in 1"):
        distill(student, teacher, PAIRS, (tokens, mask), active=4)
    with pytest.raises(ShapeError, match="a pair must have one shape"):
        distill(student, teacher, [("embedding", "blocks.0.expand")], (tokens, mask))
    with pytest.raises(ShapeError, match="mask must have shape"):
        distill(student, teacher, PAIRS[:1], (tokens, mask), mask=mask[:, :3])
    assert not any(len(m._forward_hooks) for m in student.modules())


def test_the_schedule_and_the_soft_labels():
    assert [active_layers(s, 7) for s in (0, 1999, 2000, 11999, 12000, 10**6)] == [
        1, 1, 2, 6, 7, 7]  # fmt: skip
    logits, theirs = torch.randn(5, 3), torch.randn(5, 3)
    p = (theirs / 2).softmax(-1)
    expected = -(p * (logits / 2).log_softmax(-1)).sum(-1).mean() * 4
    assert torch.allclose(soft_label_loss(logits, theirs, temperature=2.0), expected)


@pytest.mark.slow
def test_a_teacher_is_distilled_into_a_four_bit_student():
    """The sentence benchmark in small: teacher, layers from below, quantizers, exported codes."""
    tokens, mask, labels = sentences(480)
    data = list(zip(tokens.split(80), mask.split(80), labels.split(80), strict=True))
    learn, test = data[:5], data[5:]
    student, teacher = models()
    fit(teacher, learn, torch.optim.Adam(teacher.parameters(), lr=1e-2), epochs=12)
    best = evaluate(teacher, test, {"accuracy": accuracy})["accuracy"]
    assert best > 0.9
    prepare_qat(student, 4, sample=(tokens[:40], mask[:40]))
    steps = 0

    def loss(model, batch):
        nonlocal steps
        active = active_layers(steps, len(PAIRS), every=12)
        steps += 1
        found = distill(model, teacher, PAIRS, batch[:2], active=active, mask=batch[1])
        if found.output is None:
            return found.loss
        soft = soft_label_loss(found.output, found.teacher_output)
        return found.loss + nn.functional.cross_entropy(found.output, batch[2]) + soft

    start = evaluate(student, test, {"accuracy": accuracy})["accuracy"]
    fit(student, learn, torch.optim.Adam(student.parameters(), lr=3e-2), epochs=16, loss=loss,
        max_gradient_norm=10.0)  # fmt: skip
    reached = evaluate(student, test, {"accuracy": accuracy})["accuracy"]
    assert start < 0.6
    assert reached > best - 0.05
    dense = sum(p.numel() * p.element_size() for p in teacher.parameters())
    assert export_codes(student).size_bytes < dense / 3
