"""quire.torch.context_parallel: attention over a sequence that is spread over the processes of a group. Python layer.

    shards = plan_shards(block_mask, dist.get_world_size())
    query, key, value = (shard(x, shards, dist.get_rank()) for x in (query, key, value))  # or made there
    out = flex_attention(query, key, value, score_mod, block_mask, shards=shards)

Outputs have the bits of one process. Any process group that moves CPU tensors will do (gloo).
"""

from quire._core import Shards
from quire.torch.context_parallel.attention import flex_attention
from quire.torch.context_parallel.decode import attend
from quire.torch.context_parallel.shards import plan_shards, positions, report, shard, traffic, unshard

__all__ = ["Shards", "attend", "flex_attention", "plan_shards", "positions", "report", "shard", "traffic", "unshard"]
