"""Keys and values that every query may attend and that stay: prefixes, attention sinks."""

import torch
from torch import Tensor

from tensoralg.core.errors import ShapeError

__all__ = ["PinnedSlots"]


class PinnedSlots:
    """A list of keys and values with a bias each, kept as given so that gradients reach them.

    Examples
    --------
    >>> pins = PinnedSlots()
    >>> pins.add(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), 0.0)
    >>> k, v, bias = pins.expanded(torch.zeros(5, 2, 1, 4))
    >>> k.shape, bias.shape
    (torch.Size([5, 2, 3, 4]), torch.Size([5, 2, 1, 3]))
    """

    def __init__(self) -> None:
        self._pins: list[tuple[Tensor, Tensor, Tensor]] = []

    def __len__(self) -> int:
        return sum(k.shape[2] for k, _, _ in self._pins)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that are held."""
        return [tensor for pin in self._pins for tensor in pin]

    def add(self, k: Tensor, v: Tensor, bias: Tensor | float) -> None:
        """Pin some slots.

        Parameters
        ----------
        k, v : Tensor, shapes (B or 1, H, P, d) and (B or 1, H, P, e)
            Keys and values.
        bias : float or Tensor, broadcastable to (B, H, 1, P)
            Added to the scores.

        Raises
        ------
        ShapeError
            Shapes that do not belong together.
        """
        if k.ndim != 4 or v.ndim != 4 or k.shape[:3] != v.shape[:3]:
            raise ShapeError(
                "k and v must have shapes (B or 1, H, P, d) and (B or 1, H, P, e); "
                f"got {tuple(k.shape)} and {tuple(v.shape)}"
            )
        extra = torch.as_tensor(bias, dtype=k.dtype, device=k.device)
        extra = extra[(None,) * (4 - extra.ndim)] if extra.ndim < 4 else extra
        batch, heads, count, _ = k.shape
        full = (batch if extra.shape[0] == 1 else extra.shape[0], heads, 1, count)
        accepted = zip(extra.shape[1:], full[1:], strict=True) if extra.ndim == 4 else [(0, 1)]
        if any(size not in (1, whole) for size, whole in accepted) or batch not in (1, full[0]):
            raise ShapeError(
                f"bias must be broadcastable to (B, H, 1, P) = {(batch, heads, 1, count)}; "
                f"got {tuple(extra.shape)}"
            )
        self._pins.append((k, v, extra.expand(full)))

    def expanded(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return all slots side by side.

        Parameters
        ----------
        q : Tensor, shape (B, H, T, d)
            The queries that will attend them.

        Returns
        -------
        k, v, bias : Tensor, shapes (B, H, P, d), (B, H, P, e), (B, H, 1, P)
            Those pinned for one row are given to all, in the queries' type: learned slots are
            often wider than what autocast makes of queries.

        Raises
        ------
        ShapeError
            Queries of another B, H or d, or slots whose values differ in e.
        """
        batch, heads, _, size = q.shape
        for k, v, bias in self._pins:
            rows = max(k.shape[0], bias.shape[0])
            if rows not in (1, batch) or k.shape[1] != heads or k.shape[3] != size:
                raise ShapeError(
                    f"q must have the pinned slots' B = {rows}, H = {k.shape[1]} and "
                    f"d = {k.shape[3]}; got {tuple(q.shape)}"
                )
            if v.shape[3] != (first := self._pins[0][1]).shape[3]:
                raise ShapeError(
                    f"pinned v must all have e = {first.shape[3]}; got {tuple(v.shape)}"
                )
        parts = [[x.to(q.dtype).expand(batch, -1, -1, -1) for x in pin] for pin in self._pins]
        keys, values, biases = zip(*parts, strict=True)
        return torch.cat(keys, dim=2), torch.cat(values, dim=2), torch.cat(biases, dim=3)
