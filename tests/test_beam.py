"""Beam search: against every text there is, against transformers, and where it ends."""
import itertools

import numpy as np
import pytest
from double import here

import minitx as mt
from minitx import generate, models, nn, ops
from minitx.beam import largest
from minitx.models.weights import to_published


class Table(nn.Module):
    """A model of one's own: logits that depend on the last two tokens alone."""

    def __init__(self, V=4, seed=0):
        self.context, self.table = 99, nn.Parameter(2 * np.random.default_rng(seed).standard_normal((V, V, V)))

    def forward(self, ids, attention_mask=None):
        before = np.concatenate([np.zeros_like(ids[:, :1]), ids[:, :-1]], axis=1)
        return self.table[before, ids]


def on_host(model):
    """The state of a model as new NumPy arrays."""
    return {name: np.array(here(array)) for name, array in model.state_dict().items()}


def log_probability(model, prompt, written):
    text = np.array([[*prompt, *written]])
    logp = ops.log_softmax(model(text)).numpy()[0, len(prompt) - 1:-1]
    return logp[np.arange(len(written)), list(written)].sum()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -1.0])
def test_as_many_beams_as_there_are_texts_find_the_best_one(seed, length_penalty):
    V, n, prompt = 3, 4, (1, 2)
    model = Table(V, seed)
    found = generate.generate(model, [prompt], n, num_beams=V ** n, length_penalty=length_penalty)[0]
    best = max(itertools.product(range(V), repeat=n), key=lambda text: log_probability(model, prompt, text))
    assert tuple(found) == best


def test_more_beams_never_find_a_likelier_text_than_all_of_them_and_two_beat_one_somewhere():
    gains = []
    for seed in range(20):
        model = Table(4, seed)
        one, two, all_ = (log_probability(model, (1,), generate.generate(model, [[1]], 5, num_beams=k)[0])
                          for k in (1, 2, 1024))
        assert all_ >= max(one, two) - 1e-9
        gains.append(two - one)
    assert max(gains) > 0.1


@pytest.mark.parametrize("length_penalty, expected", [(0.0, [2]), (1.0, [1, 1, 2]), (3.0, [1, 1, 2])])
def test_a_finished_text_counts_its_sum_over_its_length(length_penalty, expected):
    """After 0 comes the end, 2, with probability 0.45, or 1 with 0.55; 1 goes on for long, at 0.9 a token, and ends."""
    probabilities = np.full((3, 3, 3), 1e-12)
    probabilities[:, 0] = [1e-9, 0.55, 0.45]
    probabilities[0, 1] = [1e-9, 0.9, 0.1]
    probabilities[1, 1] = [1e-9, 0.1, 0.9]
    model = Table(3)
    model.table.data = np.log(probabilities)
    # sums: [2] -0.80; [1, 1, 2] ln .55 .9 .9 = -0.81, -0.27 a token; [1, 2] ln .55 .1 = -2.90
    assert generate.generate(model, [[0]], 9, num_beams=2, length_penalty=length_penalty, stop=2)[0].tolist() == expected


def test_rows_end_each_at_its_end_and_are_filled_up():
    model = Table(5, 3)
    alone = [generate.generate(model, [[t]], 8, num_beams=3, stop=4)[0].tolist() for t in range(4)]
    both = generate.generate(model, [[0], [1], [2], [3]], 8, num_beams=3, stop=4)
    assert len({len(row) for row in alone}) > 1 and both.shape[1] == max(map(len, alone))
    for row, expected in zip(both.tolist(), alone):
        assert row[:len(expected)] == expected and set(row[len(expected):]) <= {expected[-1]}


def test_one_token_and_one_word():
    best = Table()(np.array([[1]])).data[0, 0].argmax()
    assert generate.generate(Table(), [[1]], 1, num_beams=3).tolist() == [[best]]
    assert generate.generate(Table(1), [[0]], 3, num_beams=2).tolist() == [[0, 0, 0]]       # more beams than texts


def test_logits_that_allow_no_token():
    model = Table()
    model.table.data[:, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        generate.generate(model, [[2]], 3, num_beams=3)


@pytest.mark.parametrize("length_penalty", [50, -50])
def test_a_penalty_of_the_largest_size(length_penalty):
    assert generate.generate(Table(), [[1]], 90, num_beams=5, length_penalty=length_penalty, stop=3).shape[0] == 1
    with pytest.raises(ValueError, match="length_penalty must lie between -50 and 50"):
        generate.generate(Table(), [[1]], 5, num_beams=2, length_penalty=2 * length_penalty)


def test_the_largest_come_first():
    x = np.random.default_rng(0).standard_normal((4, 9))
    np.testing.assert_array_equal(np.take_along_axis(x, largest(x, 5), 1), -np.sort(-x, axis=1)[:, :5])


# ---- transformers ----------------------------------------------------------------------------------------------------

SIZES = dict(vocab_size=60)
CONFIGS = {
    "gpt2": (models.GPT2, models.GPT2Config(60, 40, 16, 2, 2, initializer_range=0.5)),
    "llama": (models.Llama, models.LlamaConfig(60, 16, 32, 2, 4, 2, initializer_range=0.5)),
    "t5": (models.T5, models.T5Config(60, 16, 8, 32, 2, num_heads=2, initializer_factor=1.5)),
    "bart": (models.BART, models.BartConfig(60, 40, 2, 32, 2, 2, 32, 2, d_model=16, init_std=0.3, pad_token_id=0,
                                            eos_token_id=5)),
}


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request):
    """Our model, and theirs of the same weights."""
    torch, tf = pytest.importorskip("torch"), pytest.importorskip("transformers")
    make, config = CONFIGS[request.param]
    mt.manual_seed(1)
    ours = make(config).eval()
    ours.config.eos_token_id = 5
    kinds = {"gpt2": (tf.GPT2Config, tf.GPT2LMHeadModel, dict(
                 n_positions=40, n_embd=16, n_layer=2, n_head=2, bos_token_id=5)),
             "llama": (tf.LlamaConfig, tf.LlamaForCausalLM, dict(
                 hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)),
             "t5": (tf.T5Config, tf.T5ForConditionalGeneration, dict(
                 d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0)),
             "bart": (tf.BartConfig, tf.BartForConditionalGeneration, dict(
                 d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
                 encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=40, forced_eos_token_id=None))}
    their_config, their_kind, sizes = kinds[request.param]
    theirs = their_kind(their_config(vocab_size=60, eos_token_id=5, pad_token_id=0, **sizes)).eval()
    state = {name: torch.tensor(array) for name, array in to_published(request.param, on_host(ours)).items()}
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected and all("embed_tokens" in name for name in missing)
    theirs.tie_weights()
    ours.config.forced_eos_token_id = None
    return ours, theirs


IDS = np.random.default_rng(0).integers(6, 60, (4, 7))
MASK = (np.arange(7) >= np.array([0, 3, 5, 1])[:, None]).astype(int)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("options", [dict(), dict(repetition_penalty=1.3), *(
    dict(num_beams=k, length_penalty=x, repetition_penalty=r)
    for k, x, r in [(4, 1.0, 1.0), (4, 0.0, 1.0), (4, 2.0, 1.3), (2, -1.0, 1.0), (3, 0.7, 1.1)])], ids=str)
def test_the_texts_are_those_of_transformers(pair, padded, options):
    import torch
    ours, theirs = pair
    ids, mask = (np.where(MASK == 1, IDS, 0), MASK) if padded else (IDS, np.ones_like(MASK))
    found = generate.generate(ours, ids, 20, attention_mask=mask if padded else None, **options)
    expected = theirs.generate(torch.tensor(ids), attention_mask=torch.tensor(mask), max_new_tokens=20, do_sample=False,
                               **options).numpy()
    expected = expected[:, 1 if hasattr(ours, "encode") else 7:]
    for row, other in zip(found.tolist(), expected.tolist()):
        assert cut(row) == cut(other)


def cut(row):
    """Up to the end, what follows is filling."""
    return row[:row.index(5) + 1] if 5 in row else row
