"""JAX: jax.nn.dot_product_attention under jit; ragged batches padded, with their lengths; pages gathered first."""

import functools
import itertools
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from peers.unsupported import Unsupported  # noqa: E402

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}


def version():
    return jax.__version__


def prepare(case, threads):
    if case.format:
        raise Unsupported("no attention over codes")
    if case.dtype == "f16":
        raise Unsupported("no products of f16 on a CPU")
    if threads != len(os.sched_getaffinity(0)):
        raise Unsupported("runs on all CPUs it sees; use --threads with their number")
    if case.page_size:
        return _paged(case)
    if len(set(case.q_lengths)) > 1:
        return _padded(case)
    return _dense(case)


def _dense(case):
    inputs = [[jnp.asarray(one.swapaxes(1, 2), DTYPES[case.dtype]) for one in case.dense(t)] for t in range(case.turns)]
    turns = itertools.cycle(inputs)
    function = jax.jit(functools.partial(jax.nn.dot_product_attention, is_causal=case.is_causal and not case.is_decode))

    def call(arguments=None):
        return function(*(arguments or next(turns))).block_until_ready()

    return call, lambda: np.asarray(call(inputs[0]), np.float32).reshape(-1, case.q_heads, case.dim)


def _padded(case):
    longest, lengths = max(case.kv_lengths), jnp.array(case.kv_lengths)
    offsets, padded = case.offsets(case.q_lengths), []
    for one in case.arrays():
        whole = np.zeros((len(lengths), longest, *one.shape[1:]), np.float32)
        for row, (begin, end) in enumerate(itertools.pairwise(offsets)):
            whole[row, : end - begin] = one[begin:end]
        padded.append(jnp.asarray(whole, DTYPES[case.dtype]))
    function = jax.jit(
        lambda q, k, v: jax.nn.dot_product_attention(
            q, k, v, is_causal=case.is_causal, query_seq_lengths=lengths, key_value_seq_lengths=lengths
        )
    )

    def call():
        return function(*padded).block_until_ready()

    def output():
        whole = np.asarray(call(), np.float32)
        return np.concatenate([whole[row, :n] for row, n in enumerate(case.q_lengths)])

    return call, output


def _paged(case):
    table, count = case.pages()
    lengths, slots, inputs = jnp.array(case.kv_lengths), case.slots(), []
    for turn in range(case.turns):
        q, *keys = case.arrays(turn)
        pools = []
        for one in keys:
            pool = np.zeros((count * case.page_size, case.kv_heads, case.dim), np.float32)
            pool[slots] = one
            pools.append(jnp.asarray(pool.reshape(count, case.page_size, *pool.shape[1:]), DTYPES[case.dtype]))
        inputs.append((jnp.asarray(q[:, None], DTYPES[case.dtype]), *pools))

    @jax.jit
    def function(q, k, v, table):
        k, v = (one[table].reshape(len(lengths), -1, case.kv_heads, case.dim) for one in (k, v))
        return jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=lengths)

    turns, table = itertools.cycle(inputs), jnp.asarray(table)

    def call(arguments=None):
        return function(*(arguments or next(turns)), table).block_until_ready()

    return call, lambda: np.asarray(call(inputs[0]), np.float32)[:, 0]
