"""A quantized model's state put into a fresh model of floats."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tensoralg.core.errors import PersistenceError
from tensoralg.nn.encoder_shortcuts import leave_shortcuts
from tensoralg.nn.packed_weight import PackedWeight
from tensoralg.nn.quantization_units import find_units, packed_layer, replace_modules
from tensoralg.nn.quantized_train import QuantizedTTLinear
from tensoralg.nn.tt_linear import TTLinear

__all__ = ["load_quantized"]


def load_quantized(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Give a fresh model of floats the layers and the state of a quantized one.

    Parameters
    ----------
    model : Module
        Built as the one that was quantized; changed in place. Its own weights are lost.
    state : mapping of str to Tensor
        ``state_dict()`` of the quantized model, as `torch.load` with ``weights_only=True`` or
        safetensors returns it.

    Returns
    -------
    Module
        The model; a new object only where it is a single layer.

    Raises
    ------
    PersistenceError
        The state does not belong to such a model. The model may then have new layers, without
        values.

    Notes
    -----
    Layers that share a weight in `model` share the codes afterwards. A model that has quantized
    layers already takes another state by ``load_state_dict``, of other bits, too.

    Examples
    --------
    >>> from tensoralg.nn import Calibrator, quantize
    >>> model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    >>> _ = quantize(model, Calibrator(model).run([torch.randn(64, 16)]), 4)
    >>> fresh = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    >>> fresh = load_quantized(fresh, model.state_dict())
    >>> x = torch.randn(2, 16)
    >>> torch.equal(fresh(x), model(x))
    True
    """
    new: dict[int, nn.Module] = {}
    try:
        for unit in find_units(model):
            shared: PackedWeight | None = None
            for name, layer in unit.layers.items():
                prefix = f"{name}." if name else ""
                bias = getattr(layer, "bias", None)
                if f"{prefix}packed.layout" in state:
                    shared = shared or _empty(state, f"{prefix}packed.", unit.weight)
                    new[id(layer)] = packed_layer(layer, shared, bias)
                elif f"{prefix}cores.0.layout" in state:
                    new[id(layer)] = _empty_train(state, prefix, layer, unit.weight)
        replace_modules(model, new)
        result = new.get(id(model), model)
        result.load_state_dict(dict(state))
    except (RuntimeError, ValueError, IndexError) as error:
        raise PersistenceError(f"state does not belong to such a model: {error}") from None
    leave_shortcuts(result)
    return result


def _empty(state: Mapping[str, Tensor], prefix: str, weight: Tensor) -> PackedWeight:
    """Build codes of the stored shape, without values."""
    rows, columns, bits, _ = (int(value) for value in state[f"{prefix}layout"])
    dtype = state[f"{prefix}scale"].dtype
    return PackedWeight(rows, columns, bits, dtype=dtype, device=weight.device)


def _empty_train(
    state: Mapping[str, Tensor], prefix: str, layer: nn.Module, weight: Tensor
) -> QuantizedTTLinear:
    """Build a layer of packed cores of the stored shapes, without values."""
    if isinstance(layer, nn.Linear):  # it became two factors
        sizes, has_bias = (layer.in_features, layer.out_features), layer.bias is not None
        layer = TTLinear(*sizes, rank=1, in_shape=1, out_shape=1, bias=has_bias, device="meta")
    if not isinstance(layer, TTLinear):
        raise ValueError(f"{prefix}cores are stored for a {type(layer).__name__}")
    packed, shapes, rank = [], [], 1
    modes = (*layer.in_shape, *layer.out_shape)
    for k, size in enumerate(modes):
        one = _empty(state, f"{prefix}cores.{k}.", weight)
        last = one.rows if k < len(layer.in_shape) else one.rows // size
        packed.append(one)
        shapes.append((rank, size, last))
        rank = last
    bias = None
    if layer.bias is not None:
        bias = torch.zeros(layer.out_features, dtype=weight.dtype, device=weight.device)
        bias.requires_grad_(layer.bias.requires_grad)
    return QuantizedTTLinear(packed, shapes, layer, bias).train(layer.training)
