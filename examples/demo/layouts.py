"""Section: how keys and values may be laid out in memory. LAYOUTS has one function per kind of layout; to add a kind,
add a function to that list.
"""

import quire
from arrays import bits, in_order, random_arrays, short_hash
from attention_f64 import attention_f64, max_error
from layout_batches import batches
from markup import Raw, paragraph, table, tick
from section import Section

BATCH, HEADS, KV_HEADS, DIM = 2, 8, 2, 64
TOLERANCE = 1e-5  # of f32 results near 1


def causal_numpy(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def dense(context):
    """Tensors with strides: every row below is the same attention over memory in another order."""
    length = 48 if context.quick else 400
    q, k, v = random_arrays([(BATCH, heads, length, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)], "f32")
    mask = quire.create_block_mask(quire.mods.causal(), None, None, length, length)
    exact = attention_f64(q, k, v, mask_mod=causal_numpy)
    # name -> the axes [B, H, S, D] in the order they have in memory, outermost first
    orders = {
        "[B, H, S, D]": (0, 1, 2, 3),
        "[B, S, H, D]": (0, 2, 1, 3),
        "[B, H, D, S]": (0, 1, 3, 2),
        "[S, B, H, D]": (2, 0, 1, 3),
    }
    rows, first, good = [], None, True
    for name, order in orders.items():
        stored = [in_order(one, order) for one in (q, k, v)]
        out = quire.flex_attention(*stored, block_mask=mask, enable_gqa=True)
        strides = ", ".join(str(stride // 4) for stride in stored[1].strides)
        error = max_error(out, exact)
        first = bits(out) if first is None else first
        is_equal = bits(out) == first
        good &= error < TOLERANCE and is_equal
        rows.append((name, strides, f"{error:.1e}", short_hash(bits(out)), is_equal))
    head = ("order in memory", "strides of the keys", "error against f64", "hash", "bits equal")
    html = (
        "<h3>Dense</h3>"
        + paragraph(
            f"{BATCH} × {HEADS} heads over {KV_HEADS} of keys, {length} tokens, causal, f32. "
            "Nothing is copied or reordered first."
        )
        + table(
            head, [(*row[:3], Raw(f'<span class="hash">{row[3]}</span>'), tick(row[4])) for row in rows], numeric=(2,)
        )
    )
    lines = [
        f"dense {name}: error against f64 {error}, bits equal: {'yes' if is_equal else 'NO'}"
        for name, _, error, _, is_equal in rows
    ]
    return Section(html, lines, good)


LAYOUTS = [dense, batches]


def layouts(context):
    parts = [layout(context) for layout in LAYOUTS]
    return Section(
        "".join(p.html for p in parts), [line for p in parts for line in p.lines], all(p.good for p in parts)
    )
