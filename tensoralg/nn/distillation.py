"""A student learns the hidden states of a teacher, layer by layer, the lower ones first."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tensoralg.core.errors import ShapeError
from tensoralg.nn.module_modes import evaluating

__all__ = ["Distillation", "LayerPair", "active_layers", "distill", "soft_label_loss"]

_KINDS = ("hidden", "attention")


@dataclass(frozen=True)
class LayerPair:
    """A module of the student that learns from one of the teacher.

    Parameters
    ----------
    student, teacher : str
        Names of the modules, as `named_modules` has them.
    kind : {"hidden", "attention"}, default "hidden"
        What they return: hidden states (B, T, width), compared by the mean square of the
        difference plus one minus the cosine; or attention probabilities (B, heads, T, T), by the
        Kullback-Leibler divergence from the teacher's.

    Raises
    ------
    ValueError
        Another kind.

    Examples
    --------
    >>> LayerPair("blocks.0", "encoder.layer.0").kind
    'hidden'
    """

    student: str
    teacher: str
    kind: str = "hidden"

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"kind must be one of {', '.join(_KINDS)}; got {self.kind!r}")


@dataclass(frozen=True, eq=False)
class Distillation:
    """What `distill` found on a batch.

    Attributes
    ----------
    loss : Tensor, shape ()
        Sum over the layers that were compared.
    losses : list of Tensor, shape ()
        Of each of them.
    output, teacher_output : object or None
        What the models returned; None where only lower layers were compared: the rest was not
        computed.
    """

    loss: Tensor
    losses: list[Tensor]
    output: Any
    teacher_output: Any


def active_layers(step: int, layers: int, *, every: int = 2000) -> int:
    """Return how many layers are compared at a step: one more every so many steps.

    Parameters
    ----------
    step : int
        Counted from 0.
    layers : int
        Number of entries of `layer_pairs`.
    every : int, default 2000
        Steps for each.

    Returns
    -------
    int
        ``min(1 + step // every, layers)``, the schedule of the authors of [1]_.

    References
    ----------
    .. [1] Z. Yang, S. Choudhary, S. Kunzmann, Z. Zhang, "Quantization-Aware and
       Tensor-Compressed Training of Transformers for Natural Language Understanding",
       Interspeech 2023, arXiv:2306.01076.

    Examples
    --------
    >>> [active_layers(step, 3) for step in (0, 1999, 2000, 9000)]
    [1, 1, 2, 3]
    """
    return min(1 + step // every, layers)


def distill(
    student: nn.Module,
    teacher: nn.Module,
    layer_pairs: Sequence[Any],
    batch: Any,
    *,
    active: int | None = None,
    mask: Tensor | None = None,
) -> Distillation:
    """Compare the layers of two models on a batch; the loss trains the student.

    Parameters
    ----------
    student : Module
        Run as it is, with gradients.
    teacher : Module
        Run in eval mode without gradients; its flags are put back.
    layer_pairs : sequence
        From the lowest layer up. An entry is a `LayerPair`, a tuple of its fields, or a list of
        these which count as one layer.
    batch : Tensor, sequence or mapping
        The models' argument, arguments or keyword arguments.
    active : int, optional
        How many entries are compared, from below (see `active_layers`); all by default. With
        fewer, both models stop as soon as these are computed.
    mask : Tensor of bool, shape (B, T), optional
        Tokens that count; padding should not.

    Returns
    -------
    Distillation
        The loss, the losses of the layers, the outputs.

    Raises
    ------
    ValueError
        No pairs, a name that is no module, a module that did not run, or a wrong `active`.
    ShapeError
        The two outputs of a pair differ in shape.
    TypeError
        A module of a pair returns no tensor.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> teacher = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    >>> student = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    >>> x = torch.randn(5, 4)
    >>> found = distill(student, teacher, [("1", "1"), ("2", "2")], x, active=1)
    >>> len(found.losses), found.output is None
    (1, True)
    """
    groups = [_as_group(entry) for entry in layer_pairs]
    if not groups:
        raise ValueError("layer_pairs must have at least one entry")
    count = len(groups) if active is None else active
    if not 1 <= count <= len(groups):
        raise ValueError(f"active must lie in 1 .. {len(groups)}; got {active}")
    pairs = [pair for group in groups[:count] for pair in group]
    whole = count == len(groups)
    with evaluating(teacher), torch.no_grad():
        theirs, expected = _listen(teacher, "teacher", [p.teacher for p in pairs], batch, whole)
    ours, output = _listen(student, "student", [p.student for p in pairs], batch, whole)
    losses = []
    for group in groups[:count]:
        terms = [_difference(p, ours[p.student], theirs[p.teacher], mask) for p in group]
        losses.append(torch.stack(terms).sum())
    return Distillation(torch.stack(losses).sum(), losses, output, expected)


def soft_label_loss(logits: Tensor, teacher_logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Return the cross-entropy to a teacher's probabilities, times the temperature's square.

    Parameters
    ----------
    logits, teacher_logits : Tensor, shape (B, classes)
        Scores of student and teacher.
    temperature : float, default 1.0
        Divides the scores.

    Returns
    -------
    Tensor, shape ()
        Mean over the rows.

    References
    ----------
    .. [1] G. Hinton, O. Vinyals, J. Dean, "Distilling the Knowledge in a Neural Network",
       arXiv:1503.02531, section 2.

    Examples
    --------
    >>> round(soft_label_loss(torch.zeros(1, 2), torch.zeros(1, 2)).item(), 4)
    0.6931
    """
    targets = (teacher_logits.detach() / temperature).softmax(dim=-1)
    loss = nn.functional.cross_entropy(logits / temperature, targets)
    return loss * temperature**2


class _EnoughError(Exception):
    """All wanted outputs are there."""


def _as_group(entry: Any) -> list[LayerPair]:
    """Make a list of pairs of one entry."""
    if isinstance(entry, LayerPair):
        return [entry]
    if isinstance(entry, tuple) and entry and isinstance(entry[0], str):
        return [LayerPair(*entry)]
    if isinstance(entry, list | tuple) and entry:
        return [pair for item in entry for pair in _as_group(item)]
    raise ValueError(
        f"an entry of layer_pairs must be a LayerPair, a tuple of names or a list; got {entry!r}"
    )


def _listen(
    model: nn.Module, role: str, names: Sequence[str], batch: Any, whole: bool
) -> tuple[dict[str, Tensor], Any]:
    """Run a model, to the end or as far as needed, and keep the outputs of some modules."""
    modules = dict(model.named_modules())
    heard: dict[str, Tensor] = {}
    if unknown := [name for name in names if name not in modules]:
        raise ValueError(f"the {role} has no module named {unknown[0]!r}")

    def listener(name: str) -> Any:
        def hear(module: nn.Module, inputs: Any, output: Any) -> None:
            # of a module that runs more than once the first output counts
            value = output[0] if isinstance(output, tuple) else output
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"the {role}'s module {name!r} must return a tensor or a tuple that begins "
                    f"with one; got {type(value).__name__}"
                )
            if name not in heard:  # a copy: a later module may work in place
                heard[name] = value.clone()
            if not whole and len(heard) == len(set(names)):
                raise _EnoughError

        return hear

    output = None
    with ExitStack() as stack:
        for name in dict.fromkeys(names):
            stack.enter_context(_Hook(modules[name], listener(name)))
        with suppress(_EnoughError):
            output = _call(model, batch)
    if missing := [name for name in names if name not in heard]:
        raise ValueError(f"the {role}'s module {missing[0]!r} did not run on this batch")
    return heard, output


class _Hook:
    """A forward hook for the length of a context."""

    def __init__(self, module: nn.Module, hook: Any) -> None:
        self._handle = module.register_forward_hook(hook)

    def __enter__(self) -> None:
        """Nothing to do: the hook is on the module."""

    def __exit__(self, *details: object) -> None:
        """Take the hook away."""
        self._handle.remove()


def _call(model: nn.Module, batch: Any) -> Any:
    """Call a model with a batch as argument, arguments or keyword arguments."""
    if isinstance(batch, Tensor):
        return model(batch)
    return model(**batch) if isinstance(batch, Mapping) else model(*batch)


def _difference(pair: LayerPair, ours: Tensor, theirs: Tensor, mask: Tensor | None) -> Tensor:
    """Compare two outputs, averaged over the tokens that count."""
    if ours.shape != theirs.shape:
        raise ShapeError(
            f"{pair.student!r} returns {tuple(ours.shape)}, {pair.teacher!r} "
            f"{tuple(theirs.shape)}; a pair must have one shape"
        )
    if pair.kind == "attention":
        least = torch.finfo(ours.dtype).tiny
        logarithms = theirs.clamp_min(least).log() - ours.clamp_min(least).log()
        each = (theirs * logarithms).sum(dim=-1).mean(dim=1)  # (B, T): over keys, over heads
    else:
        cosine = nn.functional.cosine_similarity(ours, theirs, dim=-1)
        each = (ours - theirs).square().mean(dim=-1) + 1 - cosine
    if mask is None:
        return each.mean()
    if mask.shape != each.shape:
        raise ShapeError(f"mask must have shape {tuple(each.shape)}; got {tuple(mask.shape)}")
    weights = mask.to(each.dtype)
    return (each * weights).sum() / weights.sum().clamp_min(1)
