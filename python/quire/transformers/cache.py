"""QuireCache: a Cache for generate() whose layers are pages of a KVCache. New tokens are copied once; nothing else is
copied.

Layers with the same window share one KVCache (a Pool), so that keys outside the window can be given back. Beams are
forks; what assisted decoding undoes is truncated. Python layer, below attention.py of this package.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from quire import KVCache, KVFormat
from quire.option_checks import check_int
from quire.quantized import format_of
from quire.torch.views import view_of
from quire.transformers.paged_states import PagedStates

DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
_STATE = {"window", "written", "length", "sizes", "rows"}  # of a Pool, in a file
_SPARE_TOKENS = 4096  # of a new pool: memory that no token has used is never touched


class QuireCache(Cache):
    """A cache for `generate(..., past_key_values=QuireCache(model.config))` of models with attn_implementation="quire".

    Args:
        config: of the model.
        kv_format: None: keys and values are stored in their own dtype. "int8", "u8", "int4", "fp8_e4m3", "fp8_e5m2",
            "q8_0", "q4_0", or one of these with "+hadamard", or a quire.KVFormat: they are coded when written, and read
            as codes.
        page_size: tokens of a page. Small pages are released and shared more closely; pages of 128 are read faster than
            pages of 16.

    For one model at a time, on the CPU, without gradients. Its pool grows automatically. copy.deepcopy and pickle copy
    everything.

    >>> import torch, quire.transformers
    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> from quire.transformers import QuireCache
    >>> quire.transformers.register()
    >>> config = LlamaConfig(
    ...     vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    ... )
    >>> model = AutoModelForCausalLM.from_config(config, attn_implementation="quire").eval()
    >>> cache = QuireCache(model.config)
    >>> tokens = model.generate(torch.ones(1, 9, dtype=torch.int64), past_key_values=cache, max_new_tokens=5, min_new_tokens=5)
    >>> tokens.shape, cache.get_seq_length()
    (torch.Size([1, 14]), 13)
    """

    def __init__(self, config: Any, kv_format: KVFormat | str | None = None, page_size: int = 128) -> None:
        stored = None if kv_format is None else format_of("QuireCache", kv_format)
        if stored is not None and stored.name == "int8_channel":
            raise NotImplementedError(
                "[QuireCache] kv_format='int8_channel' needs calibrated scales, which a cache that fills itself has not; int8 finds its own"
            )
        if check_int("QuireCache", "page_size", page_size) < 1:
            raise ValueError(f"[QuireCache] page_size must be at least 1; got {page_size}")
        if not hasattr(config, "get_text_config"):
            raise TypeError(f"[QuireCache] config must be that of a model; got {type(config).__name__}")
        from transformers.cache_utils import get_layer_types_and_kwargs

        decoder = config.get_text_config(decoder=True)
        types, more = get_layer_types_and_kwargs(decoder)
        self.pools: list[Pool] = []
        by_window: dict[int, Pool] = {}
        layers: list[Any] = []
        for layer, (kind, given) in enumerate(zip(types, more, strict=True)):
            if kind not in ("full_attention", "sliding_attention", "chunked_attention"):
                raise NotImplementedError(
                    f"[QuireCache] layer {layer} of this model is of the kind {kind}, which has no keys and values"
                )
            window = int(given.get("sliding_window") or 0) if kind == "sliding_attention" else 0
            if window not in by_window:
                by_window[window] = Pool(window, page_size, stored)
                self.pools.append(by_window[window])
            layers.append(QuireLayer(by_window[window]))
        super().__init__(layers=layers)

    def to(self, device: Any) -> QuireCache:
        """Returns itself: it is on the CPU. Raises ValueError for another device."""
        if torch.device(device).type != "cpu":
            raise ValueError(f"[QuireCache] pages are on the CPU; got {device}")
        return self

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Makes row i a fork of what row beam_idx[i] was: pages are shared until one of them is written."""
        if beam_idx.is_floating_point() or beam_idx.dtype is torch.bool or beam_idx.dim() != 1:
            raise TypeError(f"[QuireCache] rows must be [n] ints; got {beam_idx.dtype} {tuple(beam_idx.shape)}")
        for pool in self.pools:
            pool.choose(beam_idx.tolist())

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the rows with these indices."""
        if indices.dtype is torch.bool:
            indices = indices.nonzero().flatten()
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each row `repeats` times, consecutively, by forks."""
        if check_int("QuireCache", "repeats", repeats) < 1:
            raise ValueError(f"[QuireCache] rows are repeated once at least; got {repeats}")
        for pool in self.pools:
            pool.choose([row for row in range(len(pool.sequences)) for _ in range(repeats)])

    def crop(self, tokens_to_remove: int) -> None:
        """Drops the last tokens; their number is negative, as transformers passes it."""
        if tokens_to_remove > 0:
            raise ValueError(f"[QuireCache] crop takes the negative number of tokens to remove; got {tokens_to_remove}")
        for pool in self.pools:
            pool.check_crop(-tokens_to_remove)
        for pool in self.pools:
            pool.crop(-tokens_to_remove)

    def reset(self) -> None:
        """Drops all tokens and rows."""
        for pool in self.pools:
            pool.reset()

    def save(self, file: Any) -> None:
        """Writes everything to a file or path, for load() by a cache of the same model."""
        torch.save({"format": 1, "pools": [pool.state() for pool in self.pools]}, file)

    def load(self, file: Any) -> QuireCache:
        """Replaces the contents by what save() wrote; returns itself. Raises ValueError, and keeps its contents, if the
        model or the format differs or the file is damaged."""
        try:
            state = torch.load(file, weights_only=True)
        except OSError:
            raise
        except Exception as error:  # torch has many for files that are not its own
            raise ValueError("[QuireCache] the file is not of a QuireCache") from error
        pools = state.get("pools") if isinstance(state, dict) and state.get("format") == 1 else None
        if not isinstance(pools, list) or any(not isinstance(one, dict) or set(one) != _STATE for one in pools):
            raise ValueError("[QuireCache] the file is not of a QuireCache")
        if [one["window"] for one in pools] != [pool.window for pool in self.pools]:
            raise ValueError("[QuireCache] the file is not of a cache of this model")
        if [len(one["written"]) for one in pools] != [len(pool.written) for pool in self.pools]:
            raise ValueError("[QuireCache] the file is of a model with another number of layers")
        found = [pool.restored(one) for pool, one in zip(self.pools, pools, strict=True)]
        self.reset()
        for pool, one, contents in zip(self.pools, pools, found, strict=True):
            pool.take(one, *contents)
        return self

    def offload(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("[QuireCache] pages are on the CPU: there is nothing to offload or to prefetch")

    prefetch = offload


class QuireLayer(CacheLayerMixin):
    """A layer of a QuireCache, as transformers sees it."""

    is_croppable = True
    supports_early_init = False

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.pool, self.index = pool, pool.add_layer()
        self.is_sliding = pool.window > 0
        self.is_initialized = True

    @property
    def batch_size(self) -> int:
        return len(self.pool.sequences) or -1

    # Models that attend again to what an earlier step wrote (cross attention) read these.
    keys = property(lambda self: self.pool.states(self.index)[0], lambda self, _: None)
    values = property(lambda self: self.pool.states(self.index)[1], lambda self, _: None)

    @property
    def record_past(self) -> bool:
        return self.pool.keeps_past

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing: the pool is made when the first tokens arrive."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self.pool.write(self.index, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """All tokens so far have positions, also those outside a window, which are gone."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return self.pool.written[self.index]

    def get_max_length(self) -> int:
        return -1

    def activate_past_recording(self) -> None:
        self.pool.keeps_past = True

    def reset(self) -> None:
        self.pool.reset()

    def _of_the_cache(self, *args: Any) -> None:
        raise NotImplementedError("[QuireCache] layers share their pages; call this on the cache, not on a layer")

    crop = reorder_cache = batch_repeat_interleave = batch_select_indices = _of_the_cache  # type: ignore[assignment]


class Pool:
    """The layers of one kind: a KVCache with a sequence for each row of the batch. window: 0 for all keys. stored: the
    format of codes, or None."""

    def __init__(self, window: int, page_size: int, stored: KVFormat | None = None) -> None:
        self.window, self.page_size = window, page_size
        self.formats: dict[str, Any] = {"k_format": stored, "v_format": stored}
        self.written: list[int] = []  # tokens written in each layer
        self.length = 0  # tokens with positions: the largest of these
        self.sequences: list[Any] = []
        self.cache: Any = None
        self.dtype = ""  # of the cache, by name
        self.keeps_past = False  # until crop(): keeps the tokens that may be undone, and the window before them
        self._plan: tuple[Any, Any] = (None, None)

    def add_layer(self) -> int:
        self.written.append(0)
        return len(self.written) - 1

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Appends [batch, heads, new, dim] to a layer; the first layer of a step reserves the slots. Returns
        placeholders for all keys and values of the layer."""
        batch, _, new, _ = keys.shape
        self._check(keys, values)
        if self.cache is None:
            self._make(keys, values, batch * (new + max(3 * new, _SPARE_TOKENS)))
        if self.written[layer] == self.length:
            self._extend(new)
        elif self.written[layer] + new != self.length:
            raise RuntimeError(
                f"[QuireCache] layer {layer} has {self.written[layer]} tokens and was given {new}, where others have {self.length}"
            )
        rows = (view_of(one.detach().transpose(1, 2).flatten(0, 1)) for one in (keys, values))
        self.cache.write(layer, self.sequences, [new] * batch, *rows)
        self.written[layer] = self.length
        found = self.states(layer)
        assert found[0] is not None and found[1] is not None
        return found[0], found[1]

    def states(self, layer: int) -> tuple[PagedStates | None, PagedStates | None]:
        """Placeholders for all keys and values of a layer; None before the first."""
        if self.cache is None:
            return None, None
        batch, heads, dtype = len(self.sequences), self.cache.kv_heads, _BY_NAME[self.dtype]
        dims = (self.cache.head_dim, self.cache.v_head_dim)
        found = [PagedStates.of(self, layer, (batch, heads, self.written[layer], dim), dtype) for dim in dims]
        return found[0], found[1]

    def _check(self, keys: Tensor, values: Tensor) -> None:
        if keys.dtype not in DTYPES or keys.dtype != values.dtype or not keys.is_cpu:
            raise TypeError(
                f"[QuireCache] keys and values must be floats of one dtype on the CPU; got {keys.dtype} and {values.dtype} on "
                f"{keys.device}"
            )
        if torch.is_grad_enabled() and (keys.requires_grad or values.requires_grad):
            raise RuntimeError(
                "[QuireCache] has no gradients; call the model under torch.no_grad(), or without a cache"
            )
        if self.cache is None:
            return
        sizes = (self.cache.kv_heads, self.cache.head_dim, self.cache.v_head_dim, self.dtype)
        given = (keys.shape[1], keys.shape[3], values.shape[3], DTYPES[keys.dtype])
        if sizes != given:
            raise NotImplementedError(
                f"[QuireCache] layers with the same window must have the same heads, dims and dtype; got {given} after {sizes}"
            )
        if keys.shape[0] != len(self.sequences):
            raise ValueError(f"[QuireCache] it holds {len(self.sequences)} rows; got a batch of {keys.shape[0]}")

    def _make(self, keys: Tensor, values: Tensor, tokens: int) -> None:
        batch = keys.shape[0]
        self.dtype = DTYPES[keys.dtype]
        self.cache = KVCache(
            layers=len(self.written),
            kv_heads=keys.shape[1],
            head_dim=keys.shape[3],
            v_head_dim=values.shape[3],
            dtype=self.dtype,
            page_size=self.page_size,
            n_pages=-(-tokens // self.page_size) + batch,
            **self.formats,
        )
        self.sequences = [self.cache.create() for _ in range(batch)]

    def _extend(self, new: int) -> None:
        if self.window and not self.keeps_past:
            self._give_back()
        counts = [new] * len(self.sequences)
        if not self.cache.can_reserve(self.sequences, counts):
            self._grow(new)
        self.cache.append(self.sequences, counts)
        self.length += new

    def _give_back(self) -> None:
        """Gives back pages that no later query sees."""
        for sequence in self.sequences:
            self.cache.release_before(sequence, max(self.length - self.window + 1, 0))

    def _grow(self, new: int) -> None:
        """Makes a pool of at least twice the pages with the same rows; formerly shared pages become separate."""
        old = self.cache
        needed = len(self.sequences) * (-(-(self.length + new) // self.page_size) + 1)
        self.cache = KVCache(
            layers=old.layers,
            kv_heads=old.kv_heads,
            head_dim=old.head_dim,
            v_head_dim=old.v_head_dim,
            dtype=self.dtype,
            page_size=old.page_size,
            n_pages=max(2 * old.n_pages, 2 * needed),
            **self.formats,
        )
        moved = []
        for sequence in self.sequences:
            moved.append(self.cache.load(old.save(sequence)))
            old.release(sequence)
        self.sequences = moved

    def plan(self, key: Any, make: Any) -> Any:
        """Calls make() once for all layers of a step: as long as the key and the pages are the same."""
        key = (self.cache.version, id(self.cache), key)
        if self._plan[0] != key:
            self._plan = key, make()
        return self._plan[1]

    def choose(self, rows: list[int]) -> None:
        if self.cache is None:
            return
        for row in rows:
            if not 0 <= row < len(self.sequences):
                raise IndexError(f"[QuireCache] rows are 0..{len(self.sequences) - 1}; got {row}")
        chosen = [self.cache.fork(self.sequences[row]) for row in rows]
        for sequence in self.sequences:
            self.cache.release(sequence)
        self.sequences = chosen

    def check_crop(self, count: int) -> None:
        if count > self.length:
            raise ValueError(f"[QuireCache] crop of {count} tokens, and there are {self.length}")
        if self.cache is None or not self.window:
            return
        first = max(self.length - count - self.window + 1, 0)
        for sequence in self.sequences:
            if self.cache.begin(sequence) > first:
                raise RuntimeError(
                    "[QuireCache] crop: keys behind the window were given back; call activate_past_recording before"
                )

    def crop(self, count: int) -> None:
        if self.cache is None:
            return
        self.length -= count
        self.written = [min(one, self.length) for one in self.written]
        for sequence in self.sequences:
            self.cache.truncate(sequence, self.length)
        if self.window:
            self._give_back()

    def reset(self) -> None:
        self.cache, self.sequences, self.length = None, [], 0
        self.written = [0] * len(self.written)
        self._plan = (None, None)

    def state(self) -> dict[str, Any]:
        rows = [torch.frombuffer(bytearray(self.cache.save(one)), dtype=torch.uint8) for one in self.sequences]
        sizes = None
        if self.cache is not None:
            sizes = {name: getattr(self.cache, name) for name in ("kv_heads", "head_dim", "v_head_dim")}
            sizes["dtype"] = self.dtype
        return {"window": self.window, "written": self.written, "length": self.length, "sizes": sizes, "rows": rows}

    def restored(self, state: dict[str, Any]) -> tuple[Any, list[Any]]:
        """A KVCache with what state() described, and its sequences; (None, []) for an empty one."""
        if state["sizes"] is None:
            return None, []
        tokens = len(state["rows"]) * (state["length"] + _SPARE_TOKENS)
        cache = KVCache(
            layers=len(self.written),
            page_size=self.page_size,
            n_pages=-(-tokens // self.page_size) + len(state["rows"]),
            **state["sizes"],
            **self.formats,
        )
        return cache, [cache.load(row.numpy().tobytes()) for row in state["rows"]]

    def take(self, state: dict[str, Any], cache: Any, sequences: list[Any]) -> None:
        """Replaces the contents by those that restored() made from the same state."""
        self.cache, self.sequences = cache, sequences
        self.dtype = "" if cache is None else state["sizes"]["dtype"]
        self.written, self.length = list(state["written"]), state["length"]

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy.deepcopy: bytes in place of pages."""
        kept = {name: getattr(self, name) for name in ("page_size", "formats", "keeps_past")}
        return {**kept, **self.state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.window, self.page_size, self.formats = state["window"], state["page_size"], state["formats"]
        self.keeps_past, self._plan, self.written = state["keeps_past"], (None, None), state["written"]
        self.take(state, *self.restored(state))
