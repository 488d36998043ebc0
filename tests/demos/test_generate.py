"""What the writing demo reads, prints and says of its cache, on tiny checkpoints of every family that writes."""
import importlib.util
import io
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import minitx as mt
from minitx import models, nn

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
DEMO = Path(__file__).parents[2] / "demos" / "generate.py"
CONTEXT, FAMILIES = 48, ["gpt2", "llama", "t5", "bart"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder with one folder for each family: random weights, and a tokenizer of some syllables and all bytes."""
    from pydoc_data.topics import topics
    tokenizer, root = tokenizers.ByteLevelBPETokenizer(), tmp_path_factory.mktemp("published")
    tokenizer.train_from_iterator([topics["while"], topics["assignment"]], vocab_size=300, show_progress=False,
                                  special_tokens=["<|endoftext|>", "<pad>"])
    mt.manual_seed(3)
    end = dict(eos_token_id=0, initializer_range=0.5)
    for model in (
            models.GPT2(models.GPT2Config(300, CONTEXT, 16, 2, 2, **end)),
            models.Llama(models.LlamaConfig(300, 16, 24, 2, 4, 2, max_position_embeddings=CONTEXT, **end)),
            models.T5(models.T5Config(vocab_size=300, d_model=16, d_kv=6, d_ff=24, num_layers=1, num_decoder_layers=2,
                                      num_heads=2, eos_token_id=0, decoder_start_token_id=1)),
            models.BART(models.BartConfig(300, CONTEXT, 1, 16, 2, 2, 16, 2, d_model=16, init_std=0.5)),
            models.BERT(models.BertConfig(300, 8, 1, 1, 8))):
        for block in model.modules():
            if hasattr(block, "cross_attn"):
                block.cross_attn.w_o.weight.data *= 30                      # an answer depends on what was read
        folder = root / model.config.model_type
        model.save_pretrained(folder)
        tokenizer.save(str(folder / "tokenizer.json"))
    return root


@pytest.fixture
def demo():
    spec = importlib.util.spec_from_file_location("generate_demo", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(demo, folders, capsys):
    """run(family, *arguments): the texts that were printed, and the three last lines."""
    def run(family, *arguments):
        assert demo.main([str(folders / family), *arguments]) == 0
        *texts, last = capsys.readouterr().out.split("\n\n")
        return "\n\n".join(texts), last.splitlines()

    return run


def expected(folder, prompt, n=12, **options):
    """What generate.generate and the tokenizer make of one prompt."""
    tokenizer, model = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")), models.from_pretrained(folder)
    ids = tokenizer.encode(prompt).ids
    written = mt.generate.generate(model, [ids], n, generator=0, **options)[0].tolist()
    return tokenizer.decode(written if hasattr(model, "encode") else ids + written)


@pytest.mark.parametrize("family", FAMILIES)
def test_writes(run, folders, family):
    """As it streams, drawn and not, and beams: the same text as from generate.generate, and its speed."""
    def written(*arguments):
        return run(family, "--tokens", "12", "--prompt", "the while Größe", *arguments)[0]

    temperature = 0.8 if family in ("gpt2", "llama") else 0
    folder, prompt = folders / family, "the while Größe"
    assert written() == expected(folder, prompt, temperature=temperature)
    assert written("--temperature", "0") == expected(folder, prompt)
    assert written("--temperature", "2", "--top-p", "0.9") == expected(folder, prompt, temperature=2, top_p=0.9)
    assert written("--top-k", "9") == expected(folder, prompt, temperature=0.8, top_k=9)
    assert written("--temperature", "0", "--repetition-penalty", "3") == expected(folder, prompt, repetition_penalty=3)
    found = written("--beams", "3", "--length-penalty", "-2")
    assert found == expected(folder, prompt, num_beams=3, length_penalty=-2)
    assert len({written("--temperature", "2", "--seed", str(seed)) for seed in range(3)}) == 3


@pytest.mark.parametrize("family", FAMILIES)
def test_batch(run, family):
    """Prompts of unequal length give what each gives alone, one after the other."""
    prompts, greedy = ["a while", "if x is assigned to itself: Größe", "x"], ("--temperature", "0", "--tokens", "9")
    alone = [run(family, *greedy, "--prompt", prompt)[0] for prompt in prompts]
    text, (speed, cache, _) = run(family, *greedy, "--prompt", *prompts)
    assert text == "\n\n".join(alone) and len(set(alone)) > 1
    assert re.fullmatch(r"3 x \d+ tokens, [\d.]+ a second, the prompt apart( and the first .*)?", speed)
    assert "cache of 3 rows of" in cache


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_prompt(run, family):
    text, (speed, _, _) = run(family, "--tokens", "5")
    assert text.startswith("Once upon a time") == (family in ("gpt2", "llama"))
    assert re.fullmatch(r"\d tokens, [\d.]+ a second, the prompt apart( and the first .*)?", speed)
    assert re.fullmatch(r"1 tokens, [\d.]+ s, with the prompt", run(family, "--tokens", "1")[1][0])


def test_nothing_after_the_end(run, folders, tmp_path):
    """What the model writes when it has ended is not text, and it writes no more."""
    model = models.from_pretrained(folders / "gpt2")
    model.wte.weight.data[0] *= 10
    model.ln_f.bias.data[:] = model.wte.weight.data[0] * 100
    model.save_pretrained(tmp_path)
    shutil.copy(folders / "gpt2" / "tokenizer.json", tmp_path)
    text, (speed, _, _) = run(tmp_path, "--prompt", "a while")
    assert text == "a while" and speed.startswith("1 tokens")


# ---- text and tokens -------------------------------------------------------------------------------------------------

def stream(demo, tokenizer, prompt, before, ids):
    """What is printed after each of the ids, and after the last."""
    writing, printed, seen = demo.Writing(tokenizer, prompt, before), io.StringIO(), []
    stdout, sys.stdout = sys.stdout, printed
    try:
        for i in ids:
            writing(np.array([i]))
            seen.append(printed.getvalue())
        writing.print()
    finally:
        sys.stdout = stdout
    return [*seen, printed.getvalue()]


def test_characters_are_printed_whole(demo):
    """Characters of two, three and four bytes, each byte a token."""
    tokenizer, text = tokenizers.ByteLevelBPETokenizer(), "aß€\N{GRINNING FACE}z"
    tokenizer.train_from_iterator(["a"], vocab_size=256, show_progress=False)
    ids = tokenizer.encode(text).ids
    assert len(ids) == 11
    whole = ["a"] * 2 + ["aß"] * 3 + ["aß€"] * 4 + ["aß€\N{GRINNING FACE}", text, text]
    assert stream(demo, tokenizer, "", [], ids) == whole
    assert stream(demo, tokenizer, "Ü", tokenizer.encode("Ü").ids, ids) == ["Ü" + part for part in whole]
    *_, last, end = stream(demo, tokenizer, "", [], ids[:5])                        # it ends inside of a character
    assert last == "aß" and end == "aß\N{REPLACEMENT CHARACTER}"


def test_spaces_of_sentencepiece(demo):
    """A word's space stands in its token, and is left out at the beginning of a text alone."""
    vocabulary = {"<unk>": 0, "\u2581Hello": 1, "\u2581wor": 2, "ld": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    assert stream(demo, tokenizer, "Hello", [1], [2, 3]) == ["Hello wor", "Hello world", "Hello world"]
    assert stream(demo, tokenizer, "", [], [1, 2, 3]) == ["Hello", "Hello wor", "Hello world", "Hello world"]


def test_gpt2s_older_files(run, folders, tmp_path):
    """vocab.json and merges.txt do where there is no tokenizer.json."""
    for name in "config.json", "model.safetensors":
        shutil.copy(folders / "gpt2" / name, tmp_path)
    wrapped = tokenizers.Tokenizer.from_file(str(folders / "gpt2" / "tokenizer.json"))
    wrapped.model.save(str(tmp_path))
    arguments = ["--prompt", "Größe <|endoftext|> while", "--tokens", "20"]
    assert run(tmp_path, *arguments)[0] == run("gpt2", *arguments)[0]


def test_a_name_on_the_hub(demo, folders, tmp_path, monkeypatch, capsys):
    shutil.copytree(folders / "gpt2", tmp_path / "models--some--gpt" / "snapshots" / "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert demo.main(["some/gpt", "--tokens", "3"]) == 0
    assert demo.main(["other/gpt"]) == 2
    assert "hf download other/gpt" in capsys.readouterr().err


# ---- the cache -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cache(demo, folders, monkeypatch, capsys, family, dtype):
    """The bytes that are printed are those of the nn.Cache that generate used."""
    caches, write = [], demo.generate.generate
    monkeypatch.setattr(demo.generate, "generate", lambda *args, **options: (
        caches.append(options["cache"]), write(*args, **options))[1])
    for rows, arguments in (1, []), (2, ["--prompt", "a", "and a longer one"]), (3, ["--beams", "3"]):
        assert demo.main([str(folders / family), "--tokens", "6", "--dtype", dtype, *arguments]) == 0
        line, cache = capsys.readouterr().out.splitlines()[-2], caches.pop()
        own = cache.nbytes - cache.memory.nbytes
        read = f", and {cache.memory.nbytes:,} of what was read" if family in ("t5", "bart") else ""
        assert line == (f"the cache of {f'{rows} rows of ' if rows > 1 else ''}{cache.length} tokens is {own:,} bytes, "
                        f"{own // rows // cache.length:,} a token{read}")
        assert {room.dtype for rooms in cache.rooms.values() for room in rooms} == {np.dtype(dtype)}


def test_gpt2s_cache(demo):
    """Of 1024 tokens in float32: a key and a value of 768 numbers in each layer, and there are 12."""
    model, cache = models.GPT2(models.GPT2Config(2, n_layer=1, n_inner=1)).eval(), nn.Cache()
    with mt.no_grad():
        model.hidden(np.zeros((1, 1024), int), cache=cache)
    assert demo.describe(cache) == "the cache of 1024 tokens is 6,291,456 bytes, 6,144 a token"
    assert 12 * 6_291_456 == 75_497_472 and models.GPT2Config().n_layer == 12


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_beyond_the_context(run, family):
    """The cache keeps the beginning; what comes after it is written without one."""
    arguments = ["--prompt", "a", "--temperature", "0", "--tokens"]
    text, (speed, cache, _) = run(family, *arguments, str(CONTEXT + 4))
    a_token = {"gpt2": 2 * 2 * 16 * 4, "llama": 2 * 2 * 8 * 4}[family]
    assert cache == f"the cache of {CONTEXT} tokens is {CONTEXT * a_token:,} bytes, {a_token} a token"
    assert speed.startswith(f"{CONTEXT + 4} tokens") and text.startswith(run(family, *arguments, str(CONTEXT))[0])
    assert f"the cache of {CONTEXT - 1} tokens" in run(family, *arguments, str(CONTEXT - 1))[1][1]


# ---- what is refused -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("family, arguments, says", [
    ("missing", [], "there is no such folder"),
    ("bert", [], "does not write"),
    ("gpt2", ["--tokens", "0"], "give 1 or more"),
    ("gpt2", ["--seed", "-1"], "give 0 or more"),
    ("gpt2", ["--device", "tpu"], "'cpu', 'cuda'"),
    ("gpt2", ["--prompt", ""], "write at least a word"),
    ("gpt2", ["--prompt", "a", ""], "write at least a word"),
    ("gpt2", ["--prompt", "\udcff"], "no UTF-8"),
    ("gpt2", ["--prompt", "€" * CONTEXT], f"of {3 * CONTEXT} tokens, but GPT2 sees {CONTEXT}"),
    ("bart", ["--prompt", "€" * CONTEXT, "--tokens", "3"], f"of {3 * CONTEXT} tokens"),
    ("bart", ["--tokens", str(CONTEXT + 1)], f"{CONTEXT + 1} tokens, but BART writes {CONTEXT}"),
    ("gpt2", ["--temperature", "-1"], "temperature must be"),
    ("gpt2", ["--top-k", "0"], "top_k must be at least 1"),
    ("gpt2", ["--top-p", "1.5"], "top_p must lie"),
    ("gpt2", ["--repetition-penalty", "0"], "repetition_penalty must be"),
    ("gpt2", ["--beams", "0"], "num_beams must be at least 1"),
    ("gpt2", ["--beams", "2", "--length-penalty", "nan"], "length_penalty must"),
    ("gpt2", ["--beams", "2", "--top-k", "3"], "leave out --temperature, --top-k"),
])
def test_refused_in_one_line(demo, folders, capsys, family, arguments, says):
    assert demo.main([str(folders / family), *arguments]) == 2
    printed = capsys.readouterr()
    line, = printed.err.splitlines()
    assert line.startswith("generate: ") and says in line and line.count("generate:") == 1 and not printed.out


@pytest.mark.parametrize("name, content, says", [
    ("tokenizer.json", None, "tokenizer.json: not there"),
    ("tokenizer.json", "{}", "tokenizer.json: no tokenizer"),
    ("config.json", None, "config.json"),
    ("config.json", "[", "no JSON"),
    ("model.safetensors", None, "neither model.safetensors nor"),
    ("model.safetensors", "short", "model.safetensors"),
])
def test_a_folder_that_lacks_something(demo, folders, tmp_path, capsys, name, content, says):
    shutil.copytree(folders / "gpt2", tmp_path / "folder")
    file = tmp_path / "folder" / name
    file.unlink() if content is None else file.write_text(content, encoding="utf-8")
    assert demo.main([str(tmp_path / "folder")]) == 2
    line, = capsys.readouterr().err.splitlines()
    assert says in line


def with_words(folder, path, words):
    """A copy of a folder whose tokenizer knows these words."""
    shutil.copytree(folder, path)
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "<unk>")).save(str(path / "tokenizer.json"))
    return path


def test_ids_without_text_are_not_written(run, folders, tmp_path):
    """The model has 300 ids, but two words."""
    folder = with_words(folders / "llama", tmp_path / "folder", {"<unk>": 0, "while": 1, "if": 2})
    text, _ = run(folder, "--prompt", "while", "--temperature", "9", "--tokens", "20", "--seed", "1")
    assert set(re.findall("while|if|<unk>|.", text.replace(" ", ""))) <= {"while", "if", "<unk>"} and "if" in text


def test_a_tokenizer_of_another_model(demo, folders, tmp_path, capsys):
    folder = with_words(folders / "gpt2", tmp_path / "folder", {"<unk>": 0, "while": 300})
    assert demo.main([str(folder), "--prompt", "while"]) == 2
    assert "gives id 300, the model has 300" in capsys.readouterr().err


def test_long_prompts_are_not_cut(demo, folders, tmp_path, capsys):
    """Whatever tokenizer.json says of its own."""
    shutil.copytree(folders / "gpt2", tmp_path / "folder")
    file = str(tmp_path / "folder" / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(file)
    tokenizer.enable_truncation(3)
    tokenizer.save(file)
    assert demo.main([str(tmp_path / "folder"), "--prompt", "€" * CONTEXT]) == 2
    assert f"of {3 * CONTEXT} tokens" in capsys.readouterr().err


def test_missing_library_is_named(demo, folders, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert demo.main([str(folders / "gpt2")]) == 2
    assert "pip install tokenizers" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert demo.main([str(folders / "gpt2")]) == 2
    assert "pip install safetensors" in capsys.readouterr().err


def test_ctrl_c(demo, folders, monkeypatch, capsys):
    add = demo.Writing.__call__

    def interrupted(writing, token):
        add(writing, token)
        if len(writing.ids) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(demo.Writing, "__call__", interrupted)
    assert demo.main([str(folders / "gpt2")]) == 130
    printed = capsys.readouterr()
    assert printed.out.startswith("Once upon a time") and printed.out.endswith("\n") and not printed.err
