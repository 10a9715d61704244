r"""The arithmetic of :class:`~attnbook.mirror_descent.optimizer.MirrorDescent`: how tensors of a group take a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = [
    "described",
    "image",
    "mirrored",
    "read_again",
    "refuse_gradients",
    "remapped",
    "update_each",
    "update_together",
]

PIECE = 2**17  # tensors are worked through in pieces whose temporaries, of a MiB each, stay near the processor


def image(theta: Tensor, p: float, dtype: torch.dtype | None = None) -> Tensor:
    r"""Return the weights $\mathrm{sign}(\theta)|\theta|^{1/(p-1)}$; at 2 they share memory with $\theta$."""
    # torch computes the powers 2 and 1/2 (p = 1.5 and 3) without a logarithm; its inverse root takes half the time of
    # the root, and loses a bit that a narrower type has no place for.
    if p == 3 and dtype not in (None, theta.dtype):
        return theta.abs().clamp_(min=torch.finfo(theta.dtype).tiny).rsqrt_().mul_(theta)
    return theta if p == 2 else theta.abs().pow_(1 / (p - 1)).copysign_(theta)


def mirrored(weight: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    r"""Return the mirror image $\mathrm{sign}(W)|W|^{p-1}$ of weights."""
    wide = weight.detach().to(dtype)
    return wide.sign() * wide.abs().pow(p - 1)


def read_again(theta: Tensor, weight: Tensor, p: float) -> Tensor:
    """Return the mirror image with new entries where the weights are not those of the old ones, up to rounding."""
    own, limits = image(theta, p, weight.dtype).to(weight.dtype), torch.finfo(weight.dtype)
    same = (weight == own) | ((weight - own).abs() <= 8 * limits.eps * own.abs() + limits.tiny)
    return torch.where(same, theta, mirrored(weight, p, theta.dtype))


def remapped(theta: Tensor, before: float, after: float) -> Tensor:
    """Return the mirror image at another exponent of the same weights."""
    return theta.abs().pow_((after - 1) / (before - 1)).copysign_(theta)


def described(number: int, group: dict[str, Any], position: int) -> str:
    """Return what to call a parameter in messages."""
    names, shape = group.get("param_names"), tuple(group["params"][position].shape)
    place = f"parameter {position} of group {number}, shape {shape}"
    return f"{names[position]!r} ({place})" if names else place


def refuse_gradients(groups: list[dict[str, Any]]) -> None:
    """Refuse sparse gradients and, where a group asks for it, NaN and infinite ones.

    Raises:
        RuntimeError: If a gradient is sparse.
        FloatingPointError: If a gradient is not finite; names the parameter.
    """
    places, gradients = [], []
    for number, group in enumerate(groups):
        for position, weight in enumerate(group["params"]):
            if weight.grad is None:
                continue
            if weight.grad.is_sparse:
                raise RuntimeError(
                    f"MirrorDescent: {described(number, group, position)} has a sparse gradient, which is not "
                    "supported: the mirror map would visit every entry; use nn.Embedding(..., sparse=False)"
                )
            if group["error_if_nonfinite"]:
                places.append((number, group, position))
                gradients.append(weight.grad)
    if _suspicious(gradients):
        for place, gradient in zip(places, gradients, strict=True):
            # A norm may also be infinite because large squares were added.
            if bad := int((~gradient.isfinite()).sum()):
                raise FloatingPointError(
                    f"MirrorDescent: the gradient of {described(*place)} has {bad} NaN or infinite among its "
                    f"{gradient.numel()} entries; nothing was updated"
                )


def _suspicious(gradients: list[Tensor]) -> bool:
    """Whether some norm is not finite: one number per device tells it, in one pass over the gradients."""
    for device in {gradient.device for gradient in gradients}:
        norms = torch._foreach_norm([gradient for gradient in gradients if gradient.device == device])
        if not bool(torch.stack([norm.isfinite() for norm in norms]).all()):
            return True
    return False


def update_each(weights: list[Tensor], states: list[dict[str, Tensor]], group: dict[str, Any]) -> None:
    """Take a step tensor by tensor, large ones piece by piece."""
    for weight, state in zip(weights, states, strict=True):
        tensors = [weight, state["mirrored"], _gradient(weight)]
        if group["momentum"]:
            tensors.append(state["momentum_buffer"])
        whole = group["normalized"] or weight.numel() <= PIECE or not all(t.is_contiguous() for t in tensors)
        for part in [tensors] if whole else zip(*(t.view(-1).split(PIECE) for t in tensors), strict=True):
            _update(group, *part)


def update_together(weights: list[Tensor], states: list[dict[str, Tensor]], group: dict[str, Any]) -> None:
    """Take a plain step with torch's multi-tensor kernels; see :func:`update_each`."""
    mirrored = [state["mirrored"] for state in states]
    gradients = [_gradient(w).to(m.dtype) for w, m in zip(weights, mirrored, strict=True)]
    if group["maximize"]:
        gradients = list(torch._foreach_neg(gradients))
    if group["weight_decay"]:
        gradients = list(torch._foreach_add(gradients, mirrored, alpha=group["weight_decay"]))
    if group["momentum"]:
        buffers = [state["momentum_buffer"] for state in states]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, gradients)
        gradients = buffers
    torch._foreach_add_(mirrored, gradients, alpha=-float(group["lr"]))
    if group["p"] == 2:
        torch._foreach_copy_(weights, mirrored)
        return
    found = torch._foreach_abs(mirrored)
    torch._foreach_pow_(found, 1 / (group["p"] - 1))
    torch._foreach_mul_(found, torch._foreach_sign(mirrored))
    torch._foreach_copy_(weights, found)


def _update(
    group: dict[str, Any], weight: Tensor, theta: Tensor, gradient: Tensor, buffer: Tensor | None = None
) -> None:
    gradient = gradient.to(theta.dtype)
    if group["maximize"]:
        gradient = -gradient
    if group["weight_decay"]:
        gradient = gradient.add(theta, alpha=group["weight_decay"])
    lengths: Tensor | None = None
    if group["normalized"]:
        gradient, lengths = _scale_free(theta, gradient, group["p"], group["stacked"])
    if buffer is not None:
        gradient = buffer.mul_(group["momentum"]).add_(gradient)
    theta.sub_(gradient if lengths is None else gradient * lengths, alpha=float(group["lr"]))
    weight.copy_(image(theta, group["p"], weight.dtype))


def _gradient(weight: Tensor) -> Tensor:
    if weight.grad is None:
        raise ValueError(f"weights: expected gradients, got none for one of shape {tuple(weight.shape)}")
    return weight.grad


def _scale_free(theta: Tensor, gradient: Tensor, p: float, stacked: bool) -> tuple[Tensor, Tensor | None]:
    """Return the gradient over its dual norm, and the factor that makes a unit step move the weights by 1 / (p - 1)."""
    # torch reads no axes as all of them.
    if stacked and theta.ndim == 1:
        unit, lengths = _scale_free(theta.unsqueeze(1), gradient.unsqueeze(1), p, stacked)
        return unit.squeeze(1), None if lengths is None else lengths.squeeze(1)
    axes = tuple(range(1 if stacked else 0, theta.ndim))
    q = p / (p - 1)
    tiny = torch.finfo(theta.dtype).tiny
    gradient = gradient / gradient.abs().amax(axes, keepdim=True).clamp_(min=tiny)
    if p == 2:  # torch takes this norm in one pass; of the others it takes a slow one
        return gradient.div_(torch.linalg.vector_norm(gradient, 2, axes, keepdim=True).clamp_(min=tiny)), None
    length = gradient.abs().pow_(q).sum(axes, keepdim=True).pow_(1 / q).clamp_(min=tiny)
    # The p-norm of the weights to the power p is the q-norm of their mirror image to the power q.
    norm = theta.abs().pow_(q).sum(axes, keepdim=True).pow_(1 / p)
    return gradient.div_(length), norm.clamp_(min=1.0).pow_(p - 2)
