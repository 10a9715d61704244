r"""Constraint rows $a^\top w\ge1$ of many problems: as they are, or as outer products that are never formed.

A row $\mathrm{vec}(lr^\top)$ of $d\times e$ entries costs $d+e$ numbers, and the matrix
$A\,\mathrm{diag}(c)A^\top$ of $m$ such rows about $m^2d$ operations in place of $m^2de$.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float

__all__ = ["DenseRows", "OuterRows", "Rows"]

# Numbers up to which groups are taken together: calls cost more there than arithmetic that is done twice.
PIECE = 2**13


class Rows(Protocol):
    """The rows of a stack of problems, and the products that solvers need."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Problems, constraints and dimension."""

    def __getitem__(self, which: np.ndarray) -> Rows:
        """Return the rows of some problems."""

    def scaled(self, factor: Float[np.ndarray, "problems constraints"]) -> Rows:
        """Return each row times its factor."""

    def lengths(self) -> Float[np.ndarray, "problems constraints"]:
        """Return the Euclidean length of each row."""

    def down(self, w: Float[np.ndarray, "problems dimension"]) -> Float[np.ndarray, "problems constraints"]:
        """Return $Aw$."""

    def up(self, lam: Float[np.ndarray, "problems constraints"]) -> Float[np.ndarray, "problems dimension"]:
        r"""Return $A^\top\lambda$."""

    def gram(self) -> Float[np.ndarray, "problems constraints constraints"]:
        r"""Return $AA^\top$."""

    def lower_gram(
        self, weights: Float[np.ndarray, "problems dimension"]
    ) -> Float[np.ndarray, "problems constraints constraints"]:
        r"""Return $A\,\mathrm{diag}(c)A^\top$ on and below the diagonal; what stands above means nothing."""

    def dense(self, problem: int) -> Float[np.ndarray, "constraints dimension"]:
        """Return the matrix $A$ of one problem."""


@dataclass(frozen=True)
class DenseRows:
    """Rows as they are.

    Attributes:
        rows: ``(problems, constraints, dimension)``.
    """

    rows: Float[np.ndarray, "problems constraints dimension"]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Problems, constraints and dimension."""
        problems, count, dimension = self.rows.shape
        return problems, count, dimension

    def __getitem__(self, which: np.ndarray) -> DenseRows:
        """Return the rows of some problems."""
        return DenseRows(self.rows[which])

    def scaled(self, factor: np.ndarray) -> DenseRows:
        """Return each row times its factor."""
        return DenseRows(self.rows * factor[:, :, None])

    def lengths(self) -> np.ndarray:
        """Return the Euclidean length of each row."""
        return np.linalg.norm(self.rows, axis=2)

    def down(self, w: np.ndarray) -> np.ndarray:
        """Return $Aw$."""
        return (self.rows @ w[..., None])[..., 0]

    def up(self, lam: np.ndarray) -> np.ndarray:
        r"""Return $A^\top\lambda$."""
        return (lam[:, None, :] @ self.rows)[:, 0]

    def gram(self) -> np.ndarray:
        r"""Return $AA^\top$."""
        return self.rows @ self.rows.mT

    def lower_gram(self, weights: np.ndarray) -> np.ndarray:
        r"""Return $A\,\mathrm{diag}(c)A^\top$."""
        return (self.rows * weights[:, None, :]) @ self.rows.mT

    def dense(self, problem: int) -> np.ndarray:
        """Return the matrix $A$ of one problem."""
        return self.rows[problem]


@dataclass(frozen=True)
class OuterRows:
    r"""Rows $\mathrm{vec}(l_{it}r_i^\top)$, group by group, kept as their factors.

    Attributes:
        left: $l_{it}$, ``(problems, groups, members, d)``.
        right: $r_i$, shared by the members of a group, ``(problems, groups, e)``.

    Raises:
        ValueError: If the shapes do not fit, or a size is zero.
    """

    left: Float[np.ndarray, "problems groups members d"]
    right: Float[np.ndarray, "problems groups e"]

    def __post_init__(self) -> None:
        left, right = self.left.shape, self.right.shape
        if len(left) != 4 or len(right) != 3 or left[:2] != right[:2] or 0 in left + right:
            raise ValueError(
                f"left, right: expected (problems, groups, members, d) and (problems, groups, e), none zero, "
                f"got {left} and {right}"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Problems, constraints and dimension."""
        problems, groups, members, d = self.left.shape
        return problems, groups * members, d * self.right.shape[2]

    def __getitem__(self, which: np.ndarray) -> OuterRows:
        """Return the rows of some problems."""
        return OuterRows(self.left[which], self.right[which])

    def scaled(self, factor: np.ndarray) -> OuterRows:
        """Return each row times its factor."""
        return OuterRows(self.left * factor.reshape(*self.left.shape[:3], 1), self.right)

    def lengths(self) -> np.ndarray:
        """Return the Euclidean length of each row."""
        lengths = np.linalg.norm(self.left, axis=3) * np.linalg.norm(self.right, axis=2)[..., None]
        return lengths.reshape(self.shape[:2])

    def down(self, w: np.ndarray) -> np.ndarray:
        """Return $Aw$."""
        matrices = w.reshape(len(w), self.left.shape[3], self.right.shape[2])
        return (self.left @ (self.right @ matrices.mT)[..., None]).reshape(self.shape[:2])

    def up(self, lam: np.ndarray) -> np.ndarray:
        r"""Return $A^\top\lambda$."""
        mixed = (lam.reshape(self.left.shape[:3])[:, :, None, :] @ self.left)[:, :, 0]
        return (mixed.mT @ self.right).reshape(len(lam), -1)

    def gram(self) -> np.ndarray:
        r"""Return $AA^\top$."""
        problems, count, _ = self.shape
        flat = self.left.reshape(problems, count, -1)
        members = self.left.shape[2]
        return (flat @ flat.mT) * (self.right @ self.right.mT).repeat(members, axis=1).repeat(members, axis=2)

    def lower_gram(self, weights: np.ndarray) -> np.ndarray:
        r"""Return $A\,\mathrm{diag}(c)A^\top$ on and below the diagonal; what stands above means nothing."""
        problems, groups, members, d = self.left.shape
        matrices, count = weights.reshape(problems, d, -1), groups * members
        found = np.zeros((problems, groups, members, count))
        width = max(1, PIECE // (problems * count * d))
        for i in range(0, groups, width):
            some, before = slice(i, i + width), slice(0, min(i + width, groups))
            # (l r')C(l' r'') = sum over the entries of l * l' * C(r * r''); the last is shared by two groups.
            shared = (self.right[:, some, None] * self.right[:, None, before]) @ matrices[:, None].mT
            heavy = (self.left[:, None, before] * shared[..., None, :]).reshape(*shared.shape[:2], -1, d)
            np.matmul(self.left[:, some], heavy.mT, out=found[:, some, :, : heavy.shape[2]])
        return found.reshape(problems, count, count)

    def dense(self, problem: int) -> np.ndarray:
        """Return the matrix $A$ of one problem."""
        outer = self.left[problem][..., None] * self.right[problem][:, None, None]
        return outer.reshape(self.shape[1:])
