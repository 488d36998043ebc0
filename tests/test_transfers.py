"""What a training step on "cuda" copies and waits for, counted on the double: the batch in, the loss out, and no more."""
import double
import numpy as np
import pytest

import minitx as mt
from minitx import backend, models, nn, ops, optim

RNG = np.random.default_rng(0)
IDS, OTHERS = RNG.integers(9, size=(2, 6)), RNG.integers(9, size=(2, 5))
TARGETS = np.where(OTHERS > 2, OTHERS, -100)
RIGHT, LEFT = np.array([[1] * 6, [1] * 4 + [0] * 2]), np.array([[1] * 6, [0] * 2 + [1] * 4])
IMAGES = RNG.normal(size=(2, 3, 8, 8)).astype(np.float32)


def gpt2(p):
    return models.GPT2(models.GPT2Config(vocab_size=9, n_positions=6, n_embd=8, n_layer=2, n_head=2, resid_pdrop=p,
                                         embd_pdrop=p, attn_pdrop=p))


def llama(p):
    return models.Llama(models.LlamaConfig(9, 8, 12, 2, 4, 2, max_position_embeddings=6, attention_dropout=p))


def bert(p, **options):
    config = dict(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
                  max_position_embeddings=8, hidden_dropout_prob=p, attention_probs_dropout_prob=p)
    return models.BERT(models.BertConfig(**config | options), head="mlm")


def seq2seq(p):
    return models.Seq2Seq(models.Seq2SeqConfig(9, 9, 8, 2, 2, 2, 16, dropout=p, max_len=8))


def bart(p):
    config = dict(vocab_size=9, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                  decoder_attention_heads=2, encoder_ffn_dim=12, decoder_ffn_dim=12, max_position_embeddings=8)
    return models.BART(models.BartConfig(**config, dropout=p, pad_token_id=None))


def t5(p):
    return models.T5(models.T5Config(9, 8, 4, 12, 2, num_heads=2, dropout_rate=p))


def vit(p):
    return models.ViT(models.ViTConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
                                       image_size=8, patch_size=4, num_labels=9, hidden_dropout_prob=p,
                                       attention_probs_dropout_prob=p))


# name: (model, what it is called with, the targets, copies in besides these)
STEPS = {
    "GPT-2": (gpt2, (OTHERS,), TARGETS, 0), "GPT-2, padded on the right": (gpt2, (OTHERS, RIGHT[:, :5]), TARGETS, 0),
    "GPT-2, padded on the left: positions too": (gpt2, (IDS, LEFT), IDS, 1),
    "LLaMA": (llama, (OTHERS,), TARGETS, 0), "BERT": (bert, (OTHERS,), TARGETS, 0),
    "BERT with a padding mask": (bert, (IDS, RIGHT), IDS, 0),
    "BERT with token types": (bert, (IDS, LEFT, IDS % 2), IDS, 0),
    "encoder-decoder": (seq2seq, (IDS, OTHERS), TARGETS, 0),
    "encoder-decoder, padded: the source's mask to both stacks": (seq2seq, (IDS, OTHERS, RIGHT, RIGHT[:, 1:]), TARGETS, 1),
    "BART": (bart, (IDS, OTHERS), TARGETS, 0), "ViT": (vit, (IMAGES,), np.array([3, 8]), 0),
    "T5: the buckets of distances too, for each stack": (t5, (IDS, OTHERS), TARGETS, 2)}


class Training:
    """A model and its optimiser on the device; `step` takes one step and returns the loss, which nobody has looked at."""

    def __init__(self, make, p, optimiser=optim.AdamW):
        mt.manual_seed(0)
        self.model = make(p).to("cuda")
        self.optimiser = optimiser(self.model.parameters(), lr=1e-3)

    def step(self, inputs, targets, label_smoothing=0.0):
        inputs = [mt.tensor(x, device="cuda") if x.dtype.kind == "f" else x for x in inputs]
        self.loss = ops.cross_entropy(self.model(*inputs), targets, label_smoothing=label_smoothing)
        self.optimiser.zero_grad()
        self.loss.backward()
        self.norm = optim.clip_grad_norm(self.model.parameters(), 1.0)
        self.optimiser.step()
        return self.loss


def masks_of(monkeypatch):
    """The shapes of the masks that dropout draws from now on."""
    drawn, keep_mask = [], backend.keep_mask
    monkeypatch.setattr(backend, "keep_mask", lambda shape, *args: drawn.append(shape) or keep_mask(shape, *args))
    return drawn


@pytest.mark.parametrize("p", [0.0, 0.1], ids=["without dropout", "with dropout"])
@pytest.mark.parametrize("make, inputs, targets, more", STEPS.values(), ids=STEPS)
def test_a_step_copies_the_batch_and_its_masks(cupy, monkeypatch, make, inputs, targets, more, p):
    training = Training(make, p)
    training.step(inputs, targets, label_smoothing=0.1)             # what lies on the device from the first step on
    masks = masks_of(monkeypatch)
    for _ in range(2):
        masks.clear()
        with double.counting() as counts:
            loss = training.step(inputs, targets, label_smoothing=0.1)
        assert bool(masks) == (p > 0)
        assert counts.transfers_in == len(inputs) + 1 + more + len(masks)
        assert counts.transfers_out == counts.synchronisations == 0
        with double.counting() as counts:
            assert np.isfinite(loss.item())
        assert (counts.transfers_in, counts.transfers_out, counts.synchronisations) == (0, 1, 1)
        assert isinstance(training.norm, cupy.ndarray) and training.norm.shape == ()


def test_sgd_copies_and_waits_for_no_more(cupy):
    training = Training(gpt2, 0.0, lambda params, lr: optim.SGD(params, lr, momentum=0.9))
    training.step((OTHERS,), TARGETS)
    with double.counting() as counts:
        training.step((OTHERS,), TARGETS)
    assert (counts.transfers_in, counts.transfers_out, counts.synchronisations) == (2, 0, 0)


def test_ids_that_are_on_the_device_are_looked_at_once(cupy):
    training = Training(gpt2, 0.0)
    training.step((OTHERS,), TARGETS)
    ids, targets = (mt.tensor(x, device="cuda").data for x in (OTHERS, TARGETS))
    with double.counting() as counts:
        training.step((mt.Tensor(ids),), targets)
    assert (counts.transfers_in, counts.transfers_out, counts.synchronisations) == (0, 2, 2)      # ids, and targets


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_what_is_out_of_range_is_found_wherever_it_is(cupy, where):
    weight, logits = mt.ones(4, 3, device="cuda"), mt.ones(2, 4, device="cuda")
    for bad in (4, -1):
        ids = backend.to_device(np.array([0, bad]), where)
        with pytest.raises(IndexError, match=f"embedding: id {bad} .*size 4"):
            ops.embedding(ids, weight)
        with pytest.raises(IndexError, match=f"cross_entropy: id {bad} .*size 4"):
            ops.cross_entropy(logits, ids)
        assert ops.cross_entropy(logits, ids, ignore_index=bad).item() == pytest.approx(np.log(4))
        with double.counting() as counts, pytest.raises(IndexError, match="axis 0 of size 4"):
            weight[backend.to_device(np.array([0, bad - 4 if bad < 0 else bad]), "cpu")]
        assert counts.synchronisations == counts.transfers_in == 0


def test_an_index_from_the_host_is_looked_at_there(cupy):
    x = mt.ones(4, 3, device="cuda")
    with double.counting() as counts:
        x[np.array([0, 3])]
    assert (counts.transfers_in, counts.transfers_out, counts.synchronisations) == (1, 0, 0)


@pytest.mark.parametrize("make, copies", [
    (lambda: nn.Encoder(3, 8, 2, 8), 1), (lambda: nn.Decoder(3, 8, 2, 8), 2), (lambda: nn.Transformer(8, 2, 2, 2, 8), 3)],
    ids=["Encoder", "Decoder", "Transformer"])
def test_a_stack_copies_a_mask_once(cupy, make, copies):
    x, mask, stack = mt.ones(2, 4, 8, device="cuda"), nn.padding_mask([4, 2], 4), make().to("cuda").eval()
    with double.counting() as counts:
        stack(x, mask) if copies == 1 else stack(x, x, mask, mask)
    assert (counts.transfers_in, counts.transfers_out, counts.synchronisations) == (copies, 0, 0)


# ---- masks drawn on the device -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["GPT-2", "encoder-decoder"])
def test_masks_drawn_on_the_device_are_not_copied(cupy, name):
    make, inputs, targets, _ = STEPS[name]
    training = Training(make, 0.1)
    training.step(inputs, targets)
    mt.manual_seed(1, rng="device")
    with double.counting() as counts:
        training.step(inputs, targets)
    assert (counts.transfers_in, counts.transfers_out, counts.synchronisations) == (len(inputs) + 1, 0, 0)
