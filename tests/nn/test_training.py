"""The training loop: results, resumption bit by bit, evaluation, honest endings."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tensoralg.core.errors import ConvergenceWarning, PersistenceError
from tensoralg.nn.cuda_graphs import GraphedGradients
from tensoralg.nn.training import accuracy, cross_entropy, evaluate, fit
from tensoralg.nn.training_state import load_checkpoint, map_tensors, save_checkpoint


class NoisyDigits(Dataset):
    """Rows with noise from torch's and numpy's global generators on every access."""

    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.rows = torch.randn(60, 6, generator=generator)
        self.labels = (self.rows[:, 0] > 0).long()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        noise = 0.1 * torch.randn(6) + 0.1 * float(np.random.standard_normal())  # noqa: NPY002
        return self.rows[index] + noise, self.labels[index]


def network(seed=0):
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))


def loader(own_generator):
    generator = torch.Generator().manual_seed(11) if own_generator else None
    return DataLoader(NoisyDigits(), batch_size=8, shuffle=True, generator=generator)


def everything(model, optimizer):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    found = []
    map_tensors(lambda t: found.append(t.clone()) or t, state)
    return found


def run(path, *, own_generator, epochs=3, stop_at=None, every=None, seed=0):
    model = network(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
    result = fit(
        model,
        loader(own_generator),
        optimizer,
        epochs=epochs,
        schedule=schedule,
        checkpoint=path,
        checkpoint_every=every,
        max_gradient_norm=1.0,
        validation=lambda m: evaluate(m, loader(own_generator), {"accuracy": accuracy}),
        callback=(lambda steps, loss: steps == stop_at) if stop_at else None,
    )
    return result, everything(model, optimizer)


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("stop_at", [1, 5, 8, 11, 16, 23])
def test_a_resumed_run_equals_an_unbroken_one_bit_by_bit(tmp_path, own_generator, stop_at):
    whole, expected = run(None, own_generator=own_generator)
    path = tmp_path / "state.pt"
    first, _ = run(path, own_generator=own_generator, stop_at=stop_at)
    assert first.status == "stopped"
    assert first.steps == stop_at
    # another seed: everything must come from the file
    second, found = run(path, own_generator=own_generator, seed=99)
    assert second.status == "finished"
    assert second.history == whole.history
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_run_killed_between_two_writings_repeats_the_lost_steps(tmp_path):
    path = tmp_path / "state.pt"
    whole, expected = run(None, own_generator=False)

    class KilledError(Exception):
        pass

    def kill(steps, loss):
        if steps == 13:
            raise KilledError

    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
    with pytest.raises(KilledError):
        fit(
            model, loader(False), optimizer, epochs=3, schedule=schedule, checkpoint=path,
            checkpoint_every=5, max_gradient_norm=1.0, callback=kill,
            validation=lambda m: evaluate(m, loader(False), {"accuracy": accuracy}),
        )  # fmt: skip
    assert load_checkpoint(path)["progress"]["steps"] == 10
    result, found = run(path, own_generator=False, seed=7)
    assert result.history == whole.history
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_finished_run_is_not_repeated(tmp_path):
    path = tmp_path / "state.pt"
    first, expected = run(path, own_generator=False)
    second, found = run(path, own_generator=False, seed=5)
    assert second.history == first.history
    assert second.steps == first.steps
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_more_epochs_go_on_where_training_ended(tmp_path):
    path = tmp_path / "state.pt"
    run(path, own_generator=True, epochs=1)
    result, found = run(path, own_generator=True, epochs=3, seed=5)
    whole, expected = run(None, own_generator=True, epochs=3)
    assert result.history == whole.history
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_training_equals_a_loop_written_by_hand():
    data = list(DataLoader(TensorDataset(torch.randn(32, 6), torch.arange(32) % 2), batch_size=8))
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        models.append(nn.Linear(6, 2))
    by_hand = torch.optim.SGD(models[0].parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for x, y in data:
            by_hand.zero_grad()
            loss = nn.functional.cross_entropy(models[0](x), y)
            loss.backward()
            by_hand.step()
            losses.append(loss.item())
    result = fit(models[1], data, torch.optim.SGD(models[1].parameters(), lr=0.1), epochs=2)
    assert torch.equal(models[0].weight, models[1].weight)
    assert result.history[1]["loss"] == pytest.approx(sum(losses[4:]) / 4)


def test_evaluation_weighs_rows_and_keeps_the_flags():
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5), nn.BatchNorm1d(2))
    model[2].eval()  # frozen on purpose
    x, y = torch.randn(10, 3), torch.arange(10) % 2
    parts = [(x[:7], y[:7]), (x[7:], y[7:]), (x[:0], y[:0])]
    figures = evaluate(model, parts)
    model.eval()
    assert figures["loss"] == pytest.approx(cross_entropy(model, (x, y)).item(), rel=1e-6)
    assert figures["accuracy"] == pytest.approx(accuracy(model, (x, y)).item())
    model.train()
    model[2].eval()
    evaluate(model, parts)
    assert model[1].training
    assert not model[2].training


def test_a_loss_that_is_not_finite_ends_training_and_keeps_the_checkpoint(tmp_path):
    path = tmp_path / "state.pt"
    model = nn.Linear(2, 2)
    good = torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)
    bad = torch.full((4, 2), math.nan), good[1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(ConvergenceWarning, match="step 2 is not finite"):
        result = fit(
            model, [good, bad], optimizer, epochs=2, checkpoint=path, checkpoint_every=1
        )  # fmt: skip
    assert result.status == "diverged"
    assert result.steps == 1
    assert torch.isfinite(load_checkpoint(path)["parts"]["model"]["weight"]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1; got 0"),
        ({"epochs": 1, "checkpoint_every": 0}, "checkpoint_every must be at least 1"),
        ({"epochs": 1, "autocast": torch.float16}, "autocast must be torch.bfloat16"),
        ({"epochs": 1, "cuda_graphs": True}, "cuda_graphs needs a model on a CUDA device"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=message):
        fit(model, [(torch.ones(1, 2), torch.zeros(1, dtype=torch.int64))], optimizer, **arguments)


def test_data_without_batches_are_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="no batches"):
        fit(model, [], torch.optim.SGD(model.parameters(), lr=0.1), epochs=1)
    with pytest.raises(ValueError, match="no rows"):
        evaluate(model, [])


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 torn"])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path, content):
    path = tmp_path / "state.pt"
    path.write_bytes(content)
    with pytest.raises(PersistenceError, match=r"state\.pt is not a readable checkpoint"):
        load_checkpoint(path)


def test_checkpoints_of_other_kinds_are_refused(tmp_path):
    torch.save({"format": 99}, tmp_path / "new.pt")
    with pytest.raises(PersistenceError, match="found 99"):
        load_checkpoint(tmp_path / "new.pt")
    save_checkpoint(tmp_path / "other.pt", {"parts": {"model": {}}})
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="give the same parts"):
        fit(model, [], optimizer, epochs=1, checkpoint=tmp_path / "other.pt")
    assert not list(tmp_path.glob("*.part"))


def test_bfloat16_autocast_trains_in_mixed_precision():
    torch.manual_seed(0)
    model = nn.Linear(6, 2)
    seen = []
    model.register_forward_hook(lambda m, i, out: seen.append(out.dtype))
    batch = torch.randn(8, 6), torch.arange(8) % 2
    fit(model, [batch], torch.optim.SGD(model.parameters(), lr=0.1), epochs=1,
        autocast=torch.bfloat16)  # fmt: skip
    assert seen == [torch.bfloat16]
    assert model.weight.dtype == torch.float32


def test_the_bar_moves_and_changes_nothing(capsys):
    batch = torch.randn(8, 6), torch.arange(8) % 2
    losses = []
    for progress in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses.append(fit(model, [batch] * 3, optimizer, epochs=2, progress=progress).history)
    assert losses[0] == losses[1]


def recording(parameters, log):
    """In the place of a CUDA graph: runs the function again and keeps the gradients' memory."""

    def capture(function):
        function()
        held = [p.grad for p in parameters]
        log.append("recorded")

        def replay():
            function()
            log.append("replayed")
            for gradient, parameter in zip(held, parameters, strict=True):
                gradient.copy_(parameter.grad)

        return replay

    return capture


def test_graphed_gradients_equal_plain_ones_for_changing_batches_and_shapes():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(3))
    log = []
    gradients = GraphedGradients(
        lambda batch: (batch["x"] @ weight).square().mean(),
        [weight],
        warm_up=2,
        capture=recording([weight], log),
    )
    for step in range(8):
        x = torch.randn(4 if step != 5 else 2, 3)
        loss = gradients({"x": x})
        graph_gradient = weight.grad.clone()
        weight.grad = None
        plain = (x @ weight).square().mean()
        plain.backward()
        assert loss.item() == pytest.approx(plain.item())
        assert torch.allclose(graph_gradient, weight.grad)
        weight.grad = None
    assert log == ["recorded", *["replayed"] * 5]
    weight.data = torch.randn(3)  # replaced, as by a change of ranks
    gradients({"x": torch.randn(4, 3)})
    assert log.count("recorded") == 1


@pytest.mark.parametrize("measure", [cross_entropy, accuracy])
@pytest.mark.parametrize(
    ("batch", "seen"),
    [
        ({"x": torch.zeros(4, 6), "y": torch.zeros(4).long()}, "got dict"),
        (torch.zeros(2, 6), "got Tensor"),
        ((torch.zeros(4, 6),), "got 1 entries"),
    ],
)
def test_batches_of_another_kind_are_refused(measure, batch, seen):
    for call in (
        lambda: measure(network(), batch),
        lambda: evaluate(network(), [batch], {"m": measure}),
    ):
        with pytest.raises(TypeError, match=f"batch must be a tuple or list .*{seen}"):
            call()
    if isinstance(batch, dict):  # a measure of one's own takes them
        count = {"n": lambda model, b: b["x"].new_tensor(len(b["y"]))}
        assert evaluate(network(), [batch], count) == {"n": 4.0}


def test_what_cannot_be_trained_is_named():
    batch = torch.zeros(4, 6), torch.zeros(4).long()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for loss, kind, message in (
        (lambda m, b: m(b[0]).sum().detach(), ValueError, "depends on no parameter"),
        (lambda m, b: m(b[0]), TypeError, r"tensor of shape \(\); got shape \(4, 2\)"),
        (lambda m, b: 1.0, TypeError, r"tensor of shape \(\); got 1.0"),
    ):
        with pytest.raises(kind, match=message):
            fit(model, [batch], optimizer, epochs=1, loss=loss)
    others = torch.optim.SGD(network().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="optimizer holds none of the model's"):
        fit(model, [batch], others, epochs=1)
    with pytest.raises(ValueError, match="model is frozen"):
        fit(model.requires_grad_(False), [batch], optimizer, epochs=1)
