"""Where in a model the parts of a `PELT` go, found before anything is changed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from tensoralg.nn.pelt import PELT
from tensoralg.nn.tensorized_layer import TensorizedLayer
from tensoralg.nn.transformer import EncoderBlock, SelfAttention

__all__ = ["PROJECTIONS", "Sites", "find_sites", "sizes_of", "trained_names", "weight_of"]

PROJECTIONS = ("query", "key", "value")  # of an nn.MultiheadAttention, in the order of its weight
_ATTENTION = (SelfAttention, nn.MultiheadAttention)
_BLOCKS = (EncoderBlock, nn.TransformerEncoderLayer)


@dataclass
class Sites:
    """Modules of a model by name, as far as a configuration concerns them.

    Parameters
    ----------
    linear : dict of str to Module
        Layers whose weight changes.
    projections : dict of str to tuple of str
        For each ``nn.MultiheadAttention`` the projections whose weight changes.
    outputs : dict of str to Module
        Layers that an adapter follows.
    attention : dict of str to Module
        All attention modules.
    blocks : dict of str to Module
        All blocks, in order.
    """

    linear: dict[str, nn.Module] = field(default_factory=dict)
    projections: dict[str, tuple[str, ...]] = field(default_factory=dict)
    outputs: dict[str, nn.Module] = field(default_factory=dict)
    attention: dict[str, nn.Module] = field(default_factory=dict)
    blocks: dict[str, nn.Module] = field(default_factory=dict)

    def inside(self, name: str) -> list[str]:
        """List the linear layers with a part that belong to a module.

        Parameters
        ----------
        name : str
            The module's.

        Returns
        -------
        list of str
            Their names.
        """
        prefix = f"{name}.".lstrip(".")
        return [linear for linear in (*self.linear, *self.outputs) if linear.startswith(prefix)]


def find_sites(model: nn.Module, config: PELT) -> Sites:
    """Find where a model's parts go.

    Parameters
    ----------
    model : Module
        Not changed.
    config : PELT
        What is wanted.

    Returns
    -------
    Sites
        What there is.

    Raises
    ------
    ValueError
        There is no place for a part that is wanted, or one where it cannot go.

    Examples
    --------
    >>> sites = find_sites(nn.MultiheadAttention(8, 2), PELT(lora=2))
    >>> sites.projections
    {'': ('query', 'value')}
    """
    named = dict(model.named_modules())
    sites = Sites(
        attention={n: m for n, m in named.items() if isinstance(m, _ATTENTION)},
        blocks={n: m for n, m in named.items() if isinstance(m, _BLOCKS)},
    )
    for name, module in named.items():
        if sizes_of(module) is None:
            continue
        if config.lora and _named(name, config.targets):
            sites.linear[name] = module
        if config.adapter and _named(name, config.after):
            sites.outputs[name] = module
    wanted = tuple(p for p in PROJECTIONS if p in config.targets)
    if config.lora and wanted:
        multihead = (n for n, m in sites.attention.items() if type(m) is nn.MultiheadAttention)
        sites.projections = dict.fromkeys(multihead, wanted)
    _check_present(named, config, sites)
    _check_able(model, named, config, sites)
    return sites


def trained_names(model: nn.Module, config: PELT) -> list[str]:
    """List the model's own parameters that are trained as well.

    Parameters
    ----------
    model : Module
        Its parts of a `PELT` are left out.
    config : PELT
        With names or patterns.

    Returns
    -------
    list of str
        Names of parameters.

    Raises
    ------
    ValueError
        A pattern that nothing matches.
    """
    names = [n for n, _ in model.named_parameters() if ".pelt_" not in f".{n}"]
    found: set[str] = set()
    for pattern in config.train:
        hits = [n for n in names if n.startswith(f"{pattern}.") or fnmatchcase(n, pattern)]
        if not hits:
            raise ValueError(f"train: no parameter of the model is named {pattern!r}")
        found.update(hits)
    return [n for n in names if n in found]


def sizes_of(module: nn.Module) -> tuple[int, int] | None:
    """Sizes of a linear layer's input and output, dense or a tensor train; None for others.

    Parameters
    ----------
    module : Module
        Any.

    Returns
    -------
    tuple of int, or None
        Features in and out.
    """
    if not isinstance(module, nn.Linear | TensorizedLayer):
        return None
    ins, outs = getattr(module, "in_features", None), getattr(module, "out_features", None)
    return (ins, outs) if isinstance(ins, int) and isinstance(outs, int) else None


def weight_of(module: nn.Module) -> Tensor:
    """Return a parameter with the dtype and device that new parts beside a module get."""
    return next(p for p in module.parameters() if p.is_floating_point())


def _named(name: str, wanted: tuple[str, ...] | Any) -> bool:
    """Whether a module's last name is wanted, or its full name matches a pattern."""
    return any(name.rpartition(".")[2] == w or fnmatchcase(name, w) for w in wanted)


def _check_present(named: dict[str, nn.Module], config: PELT, sites: Sites) -> None:
    """Raise where a part has no place."""
    layers = sorted({n.rpartition(".")[2] for n, m in named.items() if sizes_of(m) is not None})
    for size, found, what in (
        ("lora", sites.linear or sites.projections, f"no linear layer is named {config.targets}"),
        ("adapter", sites.outputs, f"no linear layer is named {config.after}"),
    ):
        if getattr(config, size) and not found:
            raise ValueError(f"{size}={getattr(config, size)}: {what}; there are {layers}")
    for size, needs, what in (
        ("prefix", sites.attention, "attention"),
        ("prompt", sites.blocks, "block"),
    ):
        if getattr(config, size) and not needs:
            kinds = _ATTENTION if size == "prefix" else _BLOCKS
            names = ", ".join(kind.__name__ for kind in kinds)
            raise ValueError(
                f"{size}={getattr(config, size)}: the model has no {what} of a known kind ({names})"
            )


def _check_able(model: nn.Module, named: dict[str, nn.Module], config: PELT, sites: Sites) -> None:
    """Raise where a part cannot go."""
    for name, module in {**sites.linear, **sites.outputs}.items():
        if any(nn.parameter.is_lazy(p) for p in module.parameters()):
            raise ValueError(f"{name!r} does not know its size before its first input")
    for name, module in sites.attention.items():
        multihead = isinstance(module, nn.MultiheadAttention)
        more_keys = getattr(module, "bias_k", None) is not None
        own = multihead and (config.lora or sites.inside(name))
        if not (config.prefix or config.prompt or own):
            continue
        if type(module) not in _ATTENTION:
            raise ValueError(
                f"{name!r} is a {type(module).__name__}: its own behaviour would be lost"
            )
        if more_keys or getattr(module, "add_zero_attn", False):
            raise ValueError(f"{name!r} has bias_kv or add_zero_attn, which is not supported")
    decoders = [n for n, m in named.items() if isinstance(m, nn.TransformerDecoderLayer)]
    if decoders and config.gate and config.methods:
        raise ValueError(
            f"{decoders[0]!r} decodes: gates average over all tokens of a sample, later ones "
            "too; use PELT(gate=False)"
        )
    if config.prompt and (len(set(_parents(sites))) != 1 or decoders):
        raise ValueError(
            f"prompt={config.prompt}: prompts need one stack of blocks; the model has blocks "
            f"{sorted(sites.blocks)}"
        )


def _parents(sites: Sites) -> Iterator[tuple[str, int]]:
    """Yield for each block the name and the width of the stack that it belongs to."""
    for name, block in sites.blocks.items():
        norm = next(m for m in block.modules() if isinstance(m, nn.LayerNorm))
        yield name.rpartition(".")[0], norm.normalized_shape[0]
