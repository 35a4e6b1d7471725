"""BlockMask and create_block_mask: the rule of a mask with its sizes, as a value that passes through JAX's
transformations.

It is proved when a program runs, by the function that XLA calls, which keeps the proof while the arrays of the rule are
unchanged. Python layer.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from quire import _core
from quire.jax.mods import Mod, rule_of
from quire.jax.trace import Rule
from quire.option_checks import check_int


@jax.tree_util.register_pytree_node_class
class BlockMask:
    """Which keys a query may see; made by create_block_mask. A pytree: its leaves are the arrays that the rule reads.

    >>> import quire.jax
    >>> mask = quire.jax.create_block_mask("q_idx >= kv_idx", None, None, 1024, 1024)
    >>> mask.shape, mask.sparsity()
    ((1, 1, 1024, 1024), 43.75)
    """

    def __init__(self, rule: Rule, shape: tuple[int, ...], block_size: tuple[int, ...]) -> None:
        self.rule, self.shape, self.BLOCK_SIZE = rule, shape, block_size

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        return self.rule.arrays, (self.rule.text, self.rule.names, self.shape, self.BLOCK_SIZE)

    @classmethod
    def tree_unflatten(cls, fixed: Any, arrays: Any) -> BlockMask:
        text, names, shape, block_size = fixed
        return cls(Rule(text, names, tuple(arrays)), shape, block_size)

    def proved(self) -> _core.BlockMask:
        """The quire.BlockMask, to look at its blocks. Not available inside jit if the rule reads traced arrays."""
        arrays = {name: np.asarray(array) for name, array in zip(self.rule.names, self.rule.arrays)}
        return _core.create_block_mask(_core.MaskMod(self.rule.text, arrays), *self.shape, BLOCK_SIZE=self.BLOCK_SIZE)

    def sparsity(self) -> float:
        """The percentage of blocks that need not be computed."""
        return self.proved().sparsity()

    def __str__(self) -> str:
        return str(self.proved())

    def __repr__(self) -> str:
        return f"quire.jax.BlockMask({self.rule.text!r}, shape={self.shape})"


def create_block_mask(
    mask_mod: Mod,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    BLOCK_SIZE: int | tuple[int, int] = 128,
) -> BlockMask:
    """The mask of a rule, also inside jit, where the arrays it reads may be traced.

    Args:
        mask_mod: a text, (text, arrays by name), a MaskMod, or a function of (b, h, q_idx, kv_idx) over jax.numpy operations.
        B, H: batch entries and heads that the rule distinguishes; None: it is the same for all.
        BLOCK_SIZE: elements of a block along both axes, or (queries, keys).

    >>> import jax.numpy as jnp
    >>> import quire.jax
    >>> document = jnp.array([0, 0, 0, 1, 1, 1, 1, 2])
    >>> mask = quire.jax.create_block_mask(lambda b, h, q, kv: (document[q] == document[kv]) & (q >= kv), None, None, 8, 8)
    >>> mask
    quire.jax.BlockMask('(document[q_idx] == document[kv_idx]) & (q_idx >= kv_idx)', shape=(1, 1, 8, 8))
    """
    where = "create_block_mask"
    both = BLOCK_SIZE if isinstance(BLOCK_SIZE, (tuple, list)) else (BLOCK_SIZE, BLOCK_SIZE)
    if len(both) != 2:
        raise ValueError(f"[{where}] BLOCK_SIZE must be an int or a pair; got {BLOCK_SIZE!r}")
    block = tuple(check_int(where, "BLOCK_SIZE", size) for size in both)
    batch, heads = (1 if n is None else check_int(where, name, n) for name, n in (("B", B), ("H", H)))
    lengths = tuple(check_int(where, name, n) for name, n in (("Q_LEN", Q_LEN), ("KV_LEN", KV_LEN)))
    sizes = (batch, heads, *lengths)
    check_mask_sizes(sizes, block)
    rule = rule_of(mask_mod, None, (B, H, *lengths), where)
    return BlockMask(rule, sizes, block)


@functools.lru_cache(maxsize=1024)
def check_mask_sizes(sizes: tuple[int, ...], block_size: tuple[int, ...]) -> _core.BlockMask:
    """A mask of these sizes that shows everything; raises what create_block_mask raises for impossible sizes."""
    return _core.create_block_mask("True", *sizes, BLOCK_SIZE=block_size)
