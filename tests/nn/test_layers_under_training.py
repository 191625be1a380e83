"""What may happen to layers around training: optimizers, divergence, PyTorch's own shortcuts."""

import pytest
import torch
from torch import nn

from tensoralg.core.errors import ConvergenceWarning
from tensoralg.nn import (
    CoMERAPenalty,
    FakeQuantize,
    RankScheduler,
    TTLinear,
    TTMEmbedding,
    distill,
    export_codes,
    prepare_qat,
    tensorize,
)
from tensoralg.nn.training import fit
from tensoralg.nn.training_state import load_checkpoint


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_fused_steps_in_eval_mode_are_seen(kind):
    # fused kernels leave the version counters of what they change as they are
    torch.manual_seed(0)
    model = nn.Sequential(TTMEmbedding(40, 32, rank=4), TTLinear(32, 32, rank=4)).eval()
    ids = torch.arange(30)
    optimizer = kind(model.parameters(), lr=0.01, fused=True)
    for _ in range(3):
        with torch.no_grad():
            model(ids)  # keeps merged factors
        model(ids).square().mean().backward()
        with torch.no_grad():
            model(ids)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            expected = nn.functional.linear(model[0].weight[ids], model[1].weight, model[1].bias)
            assert torch.allclose(model(ids), expected, atol=1e-5)


def test_factors_are_kept_again_after_training_in_eval_mode():
    layer, x = TTLinear(64, 64, rank=4).eval(), torch.ones(1, 64)
    layer(x).sum().backward()
    with torch.no_grad():
        layer(x)
        assert not layer._cache._values
        layer.eval()
        layer(x)
    assert layer._cache._values


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
def test_fused_encoders_do_not_pass_by_the_layers(whole, quantized):
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(model, 2) if whole else model
    model, x = tensorize(model, rank=8, initial="random").model, torch.randn(2, 5, 32)
    if quantized:
        prepare_qat(model, 4, sample=(x,))
    model.eval()
    padding = torch.arange(5) > torch.tensor([[2], [4]])
    expected = model(x, src_key_padding_mask=padding)
    with torch.no_grad():
        found = model(x, src_key_padding_mask=padding)
    assert torch.allclose(found[~padding], expected[~padding], atol=1e-5)


@pytest.mark.parametrize(
    "kind",
    [
        torch.optim.Adafactor,
        torch.optim.LBFGS,
        torch.optim.Rprop,
        torch.optim.ASGD,
        torch.optim.RMSprop,
        torch.optim.NAdam,
        torch.optim.Adadelta,
    ],
)
def test_every_optimizer_survives_smaller_ranks(kind):
    torch.manual_seed(0)
    model = nn.Sequential(TTLinear(64, 64, rank=16), nn.ReLU(), TTLinear(64, 10, rank=8))
    options = {"centered": True, "momentum": 0.5} if kind is torch.optim.RMSprop else {}
    optimizer, x = kind(model.parameters(), lr=1e-3, **options), torch.randn(5, 64)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    scheduler = RankScheduler(model, optimizer=optimizer, target_parameters=600)
    assert scheduler.step().parameters <= 600
    optimizer.step(closure)
    assert torch.isfinite(optimizer.step(closure))
    assert all(p.is_contiguous() for p in model.parameters())


def test_centered_second_moments_stay_above_the_squares_of_the_first():
    torch.manual_seed(0)
    layer = TTLinear(64, 64, rank=16)
    optimizer = torch.optim.RMSprop(layer.parameters(), lr=1e-4, centered=True, alpha=0.5)
    for _ in range(20):  # the same gradient again and again: hardly any variance
        optimizer.zero_grad()
        layer(torch.ones(3, 64)).sum().backward()
        optimizer.step()
    layer.round_(ranks=4, optimizer=optimizer)
    for core in layer.cores:
        state = optimizer.state[core]
        assert bool((state["square_avg"] >= state["grad_avg"] ** 2).all())


def test_ranks_are_not_chosen_from_nan():
    layer = TTLinear(64, 64, rank=8)
    penalty, scheduler = CoMERAPenalty(layer), RankScheduler(layer, target_parameters=300)
    with torch.no_grad():
        layer.cores[1][0, 0, 0] = float("nan")
    ranks = layer.ranks
    for action in (penalty.prune, scheduler.step, lambda: layer.round_(ranks=2)):
        with pytest.raises(ValueError, match="NaN"):
            action()
    assert layer.ranks == ranks


@pytest.mark.parametrize(
    ("options", "message"), [({"weights": (1.0,)}, "pair"), ({"threshold": 1.5}, "below 1")]
)
def test_wrong_penalties_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        CoMERAPenalty(TTLinear(8, 8, rank=2), **options)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e12, 1e25])
def test_a_scale_does_not_depend_on_the_unit(bits, size):
    x = torch.randn(1000, generator=torch.manual_seed(0))
    near, far = FakeQuantize(bits), FakeQuantize(bits)
    near.initialize(x)
    far.initialize(x * size)
    assert far.scale.item() == pytest.approx(near.scale.item() * size, rel=1e-4)


def test_a_scale_sees_all_columns():
    x = torch.randn(512, 256, generator=torch.manual_seed(0)) * 0.01
    x[:, 1] *= 1e4
    quantizer = FakeQuantize(8)
    quantizer.initialize(x)
    assert (quantizer(x) - x).norm() < 0.05 * x.norm()


def test_a_scale_in_half_precision_stays_positive():
    quantizer = FakeQuantize(8)
    quantizer.initialize(torch.ones(3))
    quantizer.half()
    with torch.no_grad():
        quantizer.log_scale.fill_(-100.0)
    assert quantizer.scale > 0


def test_preparing_is_all_or_nothing():
    model = nn.Sequential(TTLinear(8, 8, rank=2), nn.Linear(8, 8))
    with torch.no_grad():
        model[1].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        prepare_qat(model, 4)
    assert model[0].quantizers is None
    with torch.no_grad():
        model[1].weight[0, 0] = 0.0
    prepare_qat(model, 4)
    with pytest.raises(ValueError, match="lazy"):
        prepare_qat(nn.Sequential(nn.LazyLinear(4)), 4)


def test_an_overflow_of_exported_numbers_is_refused():
    model = prepare_qat(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), 4)
    with torch.no_grad():
        model[1].running_var.fill_(1e6)
    with pytest.raises(ValueError, match=r"1\.running_var"):
        export_codes(model, rest_dtype=torch.float16)
    assert export_codes(model, rest_dtype=torch.bfloat16).rest["1.running_var"].isfinite().all()


def test_validation_may_leave_eval_mode():
    batches = [(torch.randn(8, 16), torch.zeros(8, dtype=torch.int64))] * 2
    model, modes = nn.Sequential(TTLinear(16, 4, rank=2), nn.Dropout()), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fit(
        model,
        batches,
        optimizer,
        epochs=2,
        validation=lambda m: dict.fromkeys("x", float(m.eval().training)),
        callback=lambda step, loss: modes.append(model[1].training),
    )
    assert modes == [True] * 4


def test_weights_that_are_not_finite_are_not_written(tmp_path):
    batches = [(torch.randn(8, 16), torch.zeros(8, dtype=torch.int64))] * 3
    model, calls = nn.Linear(16, 4), []

    def spoil(gradient):
        calls.append(1)
        return gradient * float("nan") if len(calls) == 3 else gradient

    model.weight.register_hook(spoil)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path / "state"
    with pytest.warns(ConvergenceWarning, match="or a weight"):
        result = fit(model, batches, optimizer, epochs=1, checkpoint=path, checkpoint_every=1)
    assert result.status == "diverged"
    stored = load_checkpoint(path)
    assert stored["progress"]["steps"] == 2
    assert stored["parts"]["model"]["weight"].isfinite().all()


def test_outputs_that_a_later_module_changes_in_place_are_compared_as_they_were():
    student = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    teacher = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    teacher.load_state_dict(student.state_dict())
    assert distill(student, teacher, [("0", "0")], torch.randn(5, 4)).loss.abs() < 1e-5


def test_outputs_that_are_no_tensors_are_named():
    class Named(nn.Module):
        def forward(self, x):
            return {"hidden": x}

    with pytest.raises(TypeError, match="dict"):
        distill(Named(), Named(), [("", "")], torch.ones(2, 2))


def test_layers_with_hooks_of_the_backward_pass_stay():
    layer = nn.Linear(64, 64)
    layer.register_full_backward_pre_hook(lambda module, gradient: None)
    model, report = tensorize(nn.Sequential(layer), rank=2)
    assert model[0] is layer
    assert "hooks" in report.rows[0].reason


def test_a_padding_row_is_an_integer():
    with pytest.raises(TypeError, match=r"padding_idx must be an integer; got 1\.5"):
        TTMEmbedding(10, 6, padding_idx=1.5)
