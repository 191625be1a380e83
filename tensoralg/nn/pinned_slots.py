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
    >>> k, v, bias = pins.expanded(5)
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

    def expanded(self, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return all slots side by side.

        Parameters
        ----------
        batch : int
            B.

        Returns
        -------
        k, v, bias : Tensor, shapes (B, H, P, d), (B, H, P, e), (B, H, 1, P)
            Those pinned for one row are given to all.
        """
        for tensor in self.tensors:
            if tensor.shape[0] not in (1, batch):
                raise ShapeError(f"q must have the pinned slots' B, {tensor.shape[0]}; got {batch}")
        parts = [[tensor.expand(batch, -1, -1, -1) for tensor in pin] for pin in self._pins]
        keys, values, biases = zip(*parts, strict=True)
        return torch.cat(keys, dim=2), torch.cat(values, dim=2), torch.cat(biases, dim=3)
