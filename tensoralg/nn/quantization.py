"""Quantization of a trained model from a calibrator's Gram matrices, in place."""

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from tensoralg.nn.calibrator import Calibrator
from tensoralg.nn.encoder_shortcuts import leave_shortcuts
from tensoralg.nn.packed_weight import PackedWeight
from tensoralg.nn.progress import tracked
from tensoralg.nn.quantization_report import UNSEEN, QuantizationReport, QuantizationRow
from tensoralg.nn.quantization_units import (
    QuantizationUnit,
    checked_bits,
    choose_bits,
    find_units,
    model_bytes,
    packed_layer,
    replace_modules,
)
from tensoralg.nn.quantized_train import quantized_train
from tensoralg.nn.sequential_inputs import MatchedInputs
from tensoralg.nn.tt_linear import TTLinear
from tensoralg.nn.weight_quantization import (
    FittedWeight,
    GridOptions,
    InputMoments,
    fit_table,
    fit_tied,
    fit_weight,
)
from tensoralg.nn.weight_train import computing_weight

__all__ = ["quantize"]


def quantize(
    model: nn.Module,
    calibrator: Calibrator,
    bits: int | Mapping[str, int | None],
    *,
    sweeps: int = 4,
    init: Literal["gptq", "nearest"] = "gptq",
    scale: Literal["channel", "layer"] = "channel",
    group_size: int | None = None,
    order: Literal["greedy", "cyclic"] = "greedy",
    symmetric: bool = True,
    correct_bias: bool = True,
    include: str | Iterable[str] = "*",
    exclude: str | Iterable[str] = (),
    data: Iterable[Any] | None = None,
    progress: bool = False,
) -> QuantizationReport:
    """Replace a model's layers by ones with packed integer weights, in place.

    Each weight W becomes a matrix Q on a grid of ``2**bits`` values that changes the outputs of
    the calibration data least, by coordinate descent in their Gram matrix (`comq`). Linear layers
    become `QuantizedLinear`, convolutions `QuantizedConvolution`, embeddings `QuantizedEmbedding`;
    a `TTLinear` keeps its train, with every core quantized.

    Parameters
    ----------
    model : Module
        Changed in place. It may be a copy of the one that the calibrator listened to.
    calibrator : Calibrator
        With data; it stops listening.
    bits : int or mapping of str to int or None
        2 to 8, for all layers or by patterns of their names, the first that fits; layers without
        one stay, as do those with None. `allocate_bits` makes such a mapping.
    sweeps, init, scale, group_size, order, symmetric
        As for `comq`. One scale for a layer is one for each group of a convolution.
    correct_bias : bool, default True
        Whether a layer's bias makes up for the mean error of its outputs; the codes are then
        fitted to what is left, by the centred Gram matrix.
    include, exclude : str or iterable of str, optional
        Patterns of names of layers to quantize, and to leave.
    data : iterable of batches, optional
        For inputs from the already quantized model: layer after layer, in the order of their
        calls, both models are run on all batches up to it, and the codes are fitted so that the
        outputs of the float model come out. Takes as many passes as there are layers with
        different inputs. Must be iterable more than once; batches as for `Calibrator.run`.
    progress : bool, default False
        Whether to show a bar on the standard error stream.

    Returns
    -------
    QuantizationReport
        Errors, bytes and seconds of every layer; printing it shows a table. ``report.model`` is
        the model, a new object only where it is a single layer.

    Warns
    -----
    UserWarning
        A layer never saw data; it is rounded by its weight's own error, and named.

    Raises
    ------
    ValueError
        Wrong options, a calibrator that saw no data, or a weight that is not finite. The model
        is then as it was.
    ShapeError
        The calibrator listened to other layers than the model has.

    References
    ----------
    .. [1] A. Zhang, Z. Yang, N. Wang, Y. Qi, J. Xin, X. Li, P. Yin, "COMQ: A backpropagation-free
       algorithm for post-training quantization", arXiv:2403.07134 (2024).

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    >>> calibrator = Calibrator(model).run([torch.randn(64, 16)])
    >>> report = quantize(model, calibrator, 4)
    >>> type(model[0]).__name__, report.bytes_before, report.bytes_after
    ('QuantizedLinear', 2704, 608)
    """
    options = GridOptions(sweeps, init, scale, group_size, order, symmetric, correct_bias)
    if data is not None and iter(data) is data:
        raise ValueError("data must be iterable more than once, such as a list or a DataLoader")
    chosen, before = checked_bits(bits), model_bytes(model)
    units = find_units(model)
    for unit in units:
        choose_bits(unit, calibrator, chosen, include, exclude)
    calibrator.close()
    quantized = [unit for unit in units if unit.bits is not None]
    for unit in quantized:
        computing_weight(f"the weight of {unit.name!r}", unit.weight)
    if data is not None and not calibrator.seen:
        calibrator.run(data)
    if quantized and not calibrator.seen:
        raise ValueError("the calibrator saw no data; run the model while it listens")
    matched = None
    if data is not None:
        matched = MatchedInputs(model, calibrator, data)
        places = {name: k for k, name in enumerate(calibrator.seen)}
        quantized.sort(key=lambda unit: places.get(unit.name, -1))
    rows: dict[str, QuantizationRow] = {}
    new: dict[int, nn.Module] = {}
    try:
        for unit in tracked(quantized, "quantize", show=progress):
            made = _quantize_unit(unit, calibrator, matched, options, rows)
            new |= made
            if matched is not None:  # what comes later is given this layer's new outputs
                replace_modules(model, made)
    except BaseException:
        olds = {id(new[id(old)]): old for u in units for old in u.layers.values() if id(old) in new}
        replace_modules(model, olds)
        raise
    replace_modules(model, new)
    result = new.get(id(model), model)
    leave_shortcuts(result)
    listed = tuple(
        rows.get(name) or _staying(name, layer, unit.reason)
        for unit in units
        for name, layer in unit.layers.items()
    )
    report = QuantizationReport(listed, before, model_bytes(result), result)
    if report.unseen:
        names = ", ".join(report.unseen)
        text = f"layers that {UNSEEN} were rounded by their weights' own errors: {names}"
        warnings.warn(text, UserWarning, stacklevel=2)
    return report


def _staying(name: str, layer: nn.Module, reason: str) -> QuantizationRow:
    """Tell of a layer that was not replaced."""
    size = model_bytes(layer)
    return QuantizationRow(name, type(layer).__name__, None, None, None, size, size, 0.0, reason)


def _quantize_unit(
    unit: QuantizationUnit,
    calibrator: Calibrator,
    matched: MatchedInputs | None,
    options: GridOptions,
    rows: dict[str, QuantizationRow],
) -> dict[int, nn.Module]:
    """Quantize layers with one weight; the new ones by the ids of the old ones."""
    start = time.perf_counter()
    assert unit.bits is not None
    name, layer = next(iter(unit.layers.items()))
    size = unit.weight.numel() * unit.weight.element_size()
    if isinstance(layer, TTLinear):
        size = sum(core.numel() * core.element_size() for core in layer.cores)
        moments = _moments(name, calibrator, matched)
        made, fitting = quantized_train(layer, moments, unit.bits, options)
        seconds = time.perf_counter() - start
        note = "" if calibrator.rows(name) else UNSEEN
        errors, sizes = (fitting.error, fitting.nearest_error), (size, made.size_bytes)
        kind = type(layer).__name__
        rows[name] = QuantizationRow(name, kind, unit.bits, *errors, *sizes, seconds, note)
        return {id(layer): made}
    fitted = _fit(unit, calibrator, matched, options)
    coded = fitted[0].coded
    assert coded is not None
    packed = PackedWeight.of(coded)
    seconds = time.perf_counter() - start
    new: dict[int, nn.Module] = {}
    for (name, layer), fit in zip(unit.layers.items(), fitted, strict=True):
        bias = getattr(layer, "bias", None)
        if bias is not None and fit.bias_change is not None:
            bias = _moved(bias, fit.bias_change)
        new[id(layer)] = packed_layer(layer, packed, bias)
        note = "" if calibrator.rows(name) else UNSEEN
        first = name == unit.name
        if not first:
            note = "; ".join(filter(None, (note, f"has the weight of {unit.name}")))
        rows[name] = QuantizationRow(
            name,
            type(layer).__name__,
            unit.bits,
            fit.error,
            fit.nearest_error,
            size if first else 0,
            packed.size_bytes if first else 0,
            seconds if first else 0.0,
            note,
        )
    return new


def _moments(name: str, calibrator: Calibrator, matched: MatchedInputs | None) -> InputMoments:
    """Return the moments of a layer's inputs: from the quantized model where it is run along."""
    if matched is not None and calibrator.rows(name):
        return matched.moments(name)
    return InputMoments.of(calibrator.sums(name))


def _fit(
    unit: QuantizationUnit,
    calibrator: Calibrator,
    matched: MatchedInputs | None,
    options: GridOptions,
) -> Sequence[FittedWeight]:
    """Find one weight's codes and what they do to each of its layers."""
    assert unit.bits is not None
    weight = computing_weight(unit.name, unit.weight).flatten(1)
    if unit.is_tied:
        inputs = [
            calibrator.counts(name)
            if isinstance(layer, nn.Embedding)
            else InputMoments.of(calibrator.sums(name))
            for name, layer in unit.layers.items()
        ]
        biases = [getattr(layer, "bias", None) is not None for layer in unit.layers.values()]
        return fit_tied(weight, inputs, unit.bits, options, biases=biases)
    ((name, layer),) = unit.layers.items()
    if isinstance(layer, nn.Embedding):
        return [fit_table(weight, calibrator.counts(name), unit.bits, options)]
    moments = _moments(name, calibrator, matched)
    has_bias = getattr(layer, "bias", None) is not None
    return [fit_weight(weight, moments, unit.bits, options, bias=has_bias)]


def _moved(bias: Tensor, change: Tensor) -> Tensor:
    """Add to a bias, which keeps its dtype and whether it needs a gradient."""
    moved = (bias.detach().double() + change.to(bias.device)).to(bias.dtype)
    return moved.requires_grad_(bias.requires_grad)
