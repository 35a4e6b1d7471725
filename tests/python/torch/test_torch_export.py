"""torch.export, AOTInductor and aot_compile over modules that call quire.torch; programs are run by other processes too."""

import pathlib
import subprocess
import sys

import pytest
import torch
from export_modules import LENGTH, MaskGiven, MaskOfAnArgument, cases, causal, create, query
from quire.torch import AuxRequest, create_block_mask, create_mask, flex_attention, scaled_dot_product_attention
from torch._subclasses.fake_tensor import FakeTensorMode

CASES = cases()

# Another mask exists in the process before anything is loaded: it must not be taken for one of a program.
RUN = """
import pathlib, sys, torch
import quire.torch
sys.path.insert(0, {here!r})
from export_modules import cases, create
others = [create(lambda b, h, q, kv: q < kv), create(lambda b, h, q, kv: q == kv)]
known = cases()
for path in sorted(pathlib.Path({folder!r}).glob("*.pt2")):
    name = path.stem.partition(",")[0]
    load = torch._inductor.aoti_load_package if {is_inductor} else lambda path: torch.export.load(path).module()
    found = load(str(path))(*known[name][1])
    torch.testing.assert_close(found, torch.load(path.with_suffix(".expected")), rtol={rtol}, atol={rtol})
    print(path.stem)
"""


def run_elsewhere(folder, environment, is_inductor=False):
    """In a fresh process: all programs of a folder, against what is beside them. Returns the names of what was run."""
    here = str(pathlib.Path(__file__).parent)
    text = RUN.format(here=here, folder=str(folder), is_inductor=is_inductor, rtol=1e-5 if is_inductor else 0)
    result = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.splitlines()


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def test_programs_run_here_and_in_another_process(tmp_path, python_env):
    saved = []
    for name, (module, arguments) in CASES.items():
        expected = module(*arguments)
        # Torch cannot put a rule with a closure together again where dynamo traces.
        for strict in (False,) if name == "mask given that captures" else (False, True):
            program = torch.export.export(module, arguments, strict=strict)
            torch.testing.assert_close(program.module()(*arguments), expected, rtol=0, atol=0)
            path = tmp_path / f"{name},{strict}.pt2"
            torch.export.save(program, path)
            torch.save(torch.utils._pytree.tree_map(torch.Tensor.detach, expected), path.with_suffix(".expected"))
            saved.append(path.stem)
        torch.testing.assert_close(module(*arguments), expected, rtol=0, atol=0)  # exporting leaves nothing behind
    assert sorted(run_elsewhere(tmp_path, python_env)) == sorted(saved)


def test_a_program_takes_other_masks_of_the_same_rule():
    x = query()
    first, second = torch.arange(LENGTH) // 18, torch.arange(LENGTH) // 31
    masks = [create(lambda b, h, q, kv, doc=doc: doc[q] == doc[kv]) for doc in (first, second)]

    def made_of(doc):
        return create(lambda b, h, q, kv: doc[q] == doc[kv])

    run = torch.export.export(MaskGiven(), (x, made_of(first))).module()
    for doc, mask in zip((first, second), masks, strict=True):
        assert torch.equal(run(x, made_of(doc)), flex_attention(x, x, x, block_mask=mask))
    with pytest.raises(Exception, match="tree spec"):
        run(x, create(causal))


class Kept(torch.nn.Module):
    """Of the rows of an input those that are not 0, of which a program knows no number: batch entries or tokens."""

    def __init__(self, are_tokens, attention):
        super().__init__()
        self.are_tokens = are_tokens
        self.attention = attention

    def forward(self, x):
        x = x[x.sum(dim=(1, 2)) != 0]
        query = x.view(1, -1, 4, 8) if self.are_tokens else x.view(-1, 1, 4, 8)
        return self.attention(query.transpose(1, 2))


SLOPES = torch.tensor([0.1, 0.2, 0.3, 0.4])
OF_KEPT = {
    "score mod": lambda q: flex_attention(q, q, q, lambda score, b, h, i, j: score * SLOPES[h]),
    "mask": lambda q: (
        flex_attention(
            q,
            q,
            q,
            block_mask=create_block_mask(causal, None, None, q.size(2), q.size(2)),
            return_aux=AuxRequest(lse=True),
        )[1].lse
    ),
    "sdpa": lambda q: scaled_dot_product_attention(
        q, q, q, attn_mask=torch.ones((q.size(0), 1, 1, 1), dtype=torch.bool)
    ),
}


@pytest.mark.parametrize("are_tokens", [False, True], ids=["batch", "tokens"])
@pytest.mark.parametrize("name", OF_KEPT)
def test_lengths_that_depend_on_values(name, are_tokens):
    model = Kept(are_tokens, OF_KEPT[name])
    inputs = [torch.randn(6, 4, 8) for _ in range(3)]
    inputs[0][2], inputs[1][:5] = 0, 0
    program = torch.export.export(model, (inputs[0],)).module()
    for one in inputs:
        assert torch.equal(program(one), model(one))


def test_lengths_may_vary():
    class Model(torch.nn.Module):
        def forward(self, x, documents):
            length = x.size(2)
            same = lambda b, h, q, kv: documents[q] == documents[kv]  # noqa: E731
            return flex_attention(
                x, x, x, block_mask=create_block_mask(same, None, None, length, length, BLOCK_SIZE=16)
            )

    length = torch.export.Dim("length", min=2, max=4096)
    arguments = (query(), torch.arange(LENGTH) // 9)
    program = torch.export.export(Model(), arguments, dynamic_shapes=({2: length}, {0: length}))
    for size in (LENGTH, 33, 130):
        x, documents = torch.randn(1, 2, size, 8), torch.arange(size) // 11
        assert torch.equal(program.module()(x, documents), Model()(x, documents))


def test_a_large_mask_is_a_constant_of_a_program(tmp_path):
    mask = create_block_mask(lambda b, h, q, kv: q + 130000 >= kv, None, None, 2048, 1 << 17, BLOCK_SIZE=16)

    class Model(torch.nn.Module):
        def forward(self, x, key):
            return flex_attention(x, key, key, block_mask=mask)

    x, key = torch.randn(1, 1, 2048, 1), torch.randn(1, 1, 1 << 17, 1)
    assert mask._words._dynamo_weak_dynamic_indices == {0}
    program = torch.export.export(Model(), (x, key))
    torch.export.save(program, tmp_path / "large.pt2")
    loaded = torch.export.load(tmp_path / "large.pt2")
    assert any(torch.equal(constant, mask._words) for constant in loaded.constants.values())


def test_fake_tensors():
    with FakeTensorMode():
        x, documents = torch.randn(1, 2, LENGTH, 8), torch.arange(LENGTH)
        mask = create(lambda b, h, q, kv: documents[q] == documents[kv])
        assert flex_attention(x, x, x, block_mask=mask).shape == x.shape
        assert mask.kv_indices.shape == (1, 1, 4, 4) and mask.shape == (1, 1, LENGTH, LENGTH)
        assert create(causal).full_q_num_blocks.shape == (1, 1, 4)
        dense = create_mask(lambda b, h, q, kv: documents[q] == documents[kv], 1, 1, LENGTH, LENGTH)
        assert scaled_dot_product_attention(x, x, x, attn_mask=dense).shape == x.shape
        with pytest.raises(TypeError, match="attn_mask is a tensor"):
            scaled_dot_product_attention(x, x, x, attn_mask=causal)
    mask = create(lambda b, h, q, kv: documents[q] == documents[kv])  # no mode, but a tensor without memory
    assert mask.kv_num_blocks.shape == (1, 1, 4)


@pytest.mark.slow
def test_aot_inductor(tmp_path, python_env):
    saved = []
    for name, (module, arguments) in CASES.items():
        with torch.no_grad():
            expected = module(*arguments)
            program = torch.export.export(module, arguments)
        path = tmp_path / f"{name},inductor.pt2"
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
        found = torch._inductor.aoti_load_package(str(path))(*arguments)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        torch.save(expected, path.with_suffix(".expected"))
        saved.append(path.stem)
    assert sorted(run_elsewhere(tmp_path, python_env, is_inductor=True)) == sorted(saved)


@pytest.mark.parametrize("name", ["mask on the module", "mask made inside", "mask given", "SDPA with a mask"])
def test_aot_compile_module(name):
    from torch._dynamo.aot_compile import ModelInput

    module, arguments = CASES[name]
    with torch.no_grad():
        expected = module(*arguments)
        compiled = torch.compile(module, fullgraph=True)
        compiled._aot_compile([ModelInput(args=arguments, kwargs={}, contexts=[])])
        torch.testing.assert_close(compiled(*arguments), expected)
        other = (torch.randn_like(arguments[0]), *arguments[1:])
        torch.testing.assert_close(compiled(*other), module(*other))
        assert compiled._save_aot_compiled_module()


def test_masks_of_arguments_are_made_when_the_program_runs():
    x = query()
    program = torch.export.export(MaskOfAnArgument(), (x, torch.arange(LENGTH) // 18))
    assert any("create_block_mask" in str(node.target) for node in program.graph.nodes)
    for size in (7, 25, 60):
        documents = torch.arange(LENGTH) // size
        assert torch.equal(program.module()(x, documents), MaskOfAnArgument()(x, documents))
