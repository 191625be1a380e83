"""Figures of a model on data, in eval mode and without gradients."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tensoralg.nn.module_modes import evaluating
from tensoralg.nn.training_state import first_tensor, map_tensors

__all__ = ["Measure", "accuracy", "cross_entropy", "device_of", "evaluate"]

Measure = Callable[[nn.Module, Any], Tensor]


def _logits(model: nn.Module, batch: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Return the model's output of all but a batch's last entry, and that entry."""
    given: object = batch
    if not isinstance(given, tuple | list) or len(given) < 2:
        seen = f"{len(given)} entries" if isinstance(given, tuple | list) else type(given).__name__
        raise TypeError(
            f"batch must be a tuple or list of the model's inputs, then labels; got {seen}. For "
            "other batches write the measure, measure(model, batch)"
        )
    *inputs, labels = batch
    output: Tensor = model(*inputs)
    return output, labels


def cross_entropy(model: nn.Module, batch: Sequence[Any]) -> Tensor:
    """Return the mean cross-entropy of a classifier on a batch.

    Parameters
    ----------
    model : Module
        ``model(*inputs)`` gives logits (B, classes).
    batch : sequence
        The inputs, and labels (B,) as the last entry.

    Returns
    -------
    Tensor, shape ()
        The loss.

    Raises
    ------
    TypeError
        A batch of another kind, such as a dict.

    Examples
    --------
    >>> import torch
    >>> batch = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    >>> round(cross_entropy(torch.nn.Identity(), batch).item(), 4)
    0.6931
    """
    output, labels = _logits(model, batch)
    return nn.functional.cross_entropy(output, labels)


def accuracy(model: nn.Module, batch: Sequence[Any]) -> Tensor:
    """Return the share of a batch that a classifier gets right.

    Parameters
    ----------
    model : Module
        ``model(*inputs)`` gives logits (B, classes).
    batch : sequence
        The inputs, and labels (B,) as the last entry.

    Returns
    -------
    Tensor, shape ()
        From 0 to 1.

    Raises
    ------
    TypeError
        A batch of another kind, such as a dict.

    Examples
    --------
    >>> import torch
    >>> batch = torch.eye(2), torch.tensor([0, 0])
    >>> accuracy(torch.nn.Identity(), batch).item()
    0.5
    """
    output, labels = _logits(model, batch)
    return (output.argmax(dim=-1) == labels).to(torch.float32).mean()


def evaluate(
    model: nn.Module, data: Iterable[Any], measures: dict[str, Measure] | None = None
) -> dict[str, float]:
    """Average measures over batches, in eval mode and without gradients.

    Parameters
    ----------
    model : Module
        Its training flags are put back afterwards.
    data : iterable of batches
        Nested tuples, lists or dicts of tensors, batch first; moved to the model's device.
    measures : dict of str to callable, optional
        ``measure(model, batch)`` returns the batch's mean; the default is the cross-entropy
        ("loss") and the accuracy of a classifier.

    Returns
    -------
    dict of str to float
        Means over all rows.

    Raises
    ------
    TypeError
        A default measure gets a batch that is no tuple or list.
    ValueError
        No rows.

    Examples
    --------
    >>> import torch
    >>> batch = torch.eye(2), torch.tensor([0, 0])
    >>> evaluate(torch.nn.Identity(), [batch], {"accuracy": accuracy})
    {'accuracy': 0.5}
    """
    if measures is None:
        measures = {"loss": cross_entropy, "accuracy": accuracy}
    device = device_of(model)
    sums = dict.fromkeys(measures, 0.0)
    rows = 0
    with evaluating(model), torch.no_grad():
        for batch in data:
            batch = map_tensors(lambda t: t.to(device, non_blocking=True), batch)
            if not (count := _rows(batch)):
                continue
            rows += count
            for name, measure in measures.items():
                sums[name] += count * float(measure(model, batch))
    if not rows:
        raise ValueError("data has no rows to evaluate")
    return {name: value / rows for name, value in sums.items()}


def device_of(model: nn.Module) -> torch.device:
    """Tell where a model's first parameter lies; the CPU if it has none."""
    parameter = next(model.parameters(), None)
    return parameter.device if parameter is not None else torch.device("cpu")


def _rows(batch: Any) -> int:
    """Count along the first axis of a batch's first tensor."""
    tensor = first_tensor(batch)
    if tensor is None or tensor.ndim == 0:
        raise ValueError("every batch must have a tensor with rows")
    return tensor.shape[0]
