"""Every private name of torch that Quire uses, and what happens if a version of torch lacks it.

tests/python/torch/test_torch_names.py compares this list with Quire's sources. Python layer, below everything else of
quire.torch.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch

# Tested versions, as major.minor.
TESTED = ("2.13",)

# Without these, importing quire.torch raises an ImportError that names what is missing.
NEEDED = frozenset(
    """torch.Tensor._make_wrapper_subclass
    torch._C.DisableTorchFunction
    torch._C.DispatchKey.ADInplaceOrView
    torch._C.DispatchKey.AutogradCPU
    torch._C.DispatchKeySet
    torch._C._ForceDispatchKeyGuard
    torch._C._disabled_torch_function_impl
    torch._C._dispatch_has_kernel_for_dispatch_key
    torch._C._dispatch_tls_local_exclude_set
    torch._C._dispatch_tls_local_include_set
    torch._C._functorch.TransformType
    torch._C._functorch.get_interpreter_stack
    torch._C._functorch.get_unwrapped
    torch._C._functorch.is_functorch_wrapped_tensor
    torch._C._functorch.is_legacy_batchedtensor
    torch._C._functorch.peek_interpreter_stack
    torch._C._get_tracing_state
    torch._C._is_any_autocast_enabled
    torch._C._len_torch_dispatch_stack
    torch._C._set_grad_enabled
    torch._C._vmapmode_decrement_nesting
    torch._C._vmapmode_increment_nesting
    torch._add_batch_dim
    torch._nested_view_from_jagged
    torch._ops.HigherOrderOperator
    torch._ops.OpOverload
    torch._ops.OpOverloadPacket
    torch._remove_batch_dim
    torch._subclasses.fake_tensor.FakeTensor
    torch.autograd.forward_ad._current_level
    torch.compiler._is_compiling_flag
    torch.nested._internal.nested_tensor.NestedTensor
    torch.nested._internal.nested_tensor._nt_view_dummy
    torch.nested._internal.sdpa
    torch.nested._internal.sdpa.jagged_scaled_dot_product_attention
    torch.nn.attention.experimental._paged_attention.PagedAttention
    torch.nn.attention.experimental._paged_attention.PagedAttention.__init__
    torch.nn.attention.flex_attention._Backend
    torch.nn.attention.flex_attention._DEFAULT_SPARSE_BLOCK_SIZE
    torch.nn.attention.flex_attention._LARGE_SPARSE_BLOCK_SIZE
    torch.nn.attention.flex_attention._compute_dq_write_order_from_block_mask
    torch.nn.attention.flex_attention._identity
    torch.nn.attention.flex_attention._mask_mod_signature
    torch.nn.attention.flex_attention._score_mod_signature
    torch.nn.attention.flex_attention._sliced_mask_mod_error
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    torch.ops.aten._to_copy.default
    torch.utils._python_dispatch.TorchDispatchMode
    torch.utils._python_dispatch._disable_current_modes
    torch.utils._python_dispatch.is_traceable_wrapper_subclass
    torch.utils._pytree.register_pytree_node
    torch.utils._pytree.tree_flatten
    torch.utils._pytree.tree_leaves""".split()
)

# Used only where a graph is made; not checked earlier, since that would import the compiler. torch.compile of Quire's
# functions raises the ImportError or AttributeError that names what is missing; without torch.compile everything works.
FOR_COMPILE = frozenset(
    """torch._dynamo.variables.builder.VariableBuilder
    torch._dynamo.variables.builder.VariableBuilder.wrap_symfloat
    torch._dynamo.variables.higher_order_ops
    torch._dynamo.variables.higher_order_ops.FlexAttentionHigherOrderVariable
    torch._dynamo.variables.higher_order_ops._hop_name_to_variable_class""".split()
)

# Imported only under torch.func. Without it torch.func.grad of attention raises an ImportError that names it.
FOR_TRANSFORMS = frozenset(["torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack"])

# Used only by enable() in distributed programs; not checked earlier, since that would import DTensor.
FOR_DISTRIBUTED = frozenset(
    """torch.distributed.tensor.experimental._context_parallel._attention
    torch.distributed.tensor.experimental._context_parallel._attention.custom_ops
    torch.distributed.tensor.experimental._context_parallel._attention.tree_flatten""".split()
)

# Looked up by name if a mod calls an operator made with torch.library.custom_op. Without it such an operator is refused
# by name.
OPTIONAL = frozenset(["torch._library.custom_ops.OPDEFS"])

# For type checkers; never imported.
FOR_TYPES = frozenset(["torch._prims_common.DeviceLikeType"])


def find(name: str) -> Any:
    """What a dotted name of torch stands for. Raises AttributeError or ImportError if there is none."""
    found: Any = torch
    path = "torch"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if not hasattr(found, part):
            try:
                importlib.import_module(path)
            except ModuleNotFoundError:
                raise AttributeError(f"torch has no {path}") from None
        found = getattr(found, part)
    return found


def check() -> None:
    """Raises ImportError for a missing required name; warns, once per process, about an untested version."""
    for name in sorted(NEEDED):
        try:
            find(name)
        except (AttributeError, ImportError) as error:
            raise ImportError(
                f"quire.torch uses {name}, which torch {torch.__version__} has not; versions that were tested: {', '.join(TESTED)}"
            ) from error
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in TESTED:
        warnings.warn(
            f"quire.torch was not tested with torch {torch.__version__}; it was with {', '.join(TESTED)}",
            UserWarning,
            stacklevel=3,
        )
