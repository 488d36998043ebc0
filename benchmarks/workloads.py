"""The models whose steps are measured, with what they read: minitx's side, which needs no PyTorch."""
import itertools
from collections.abc import Callable
from typing import NamedTuple

import limits
import numpy as np

import minitx as mt
from minitx import backend, models, nn, ops, optim

SMALL = dict(n_positions=64, n_embd=128, n_layer=4, n_head=4)
MEDIUM = dict(n_positions=256, n_embd=384, n_layer=6, n_head=6)
VIT = dict(image_size=8, patch_size=2, num_channels=1, num_labels=10, hidden_size=96, num_hidden_layers=3,
           num_attention_heads=4, intermediate_size=192, initializer_range=0.1, layer_norm_eps=1e-5)
SEQ2SEQ = dict(src_vocab_size=64, tgt_vocab_size=64, d_model=256, num_heads=4, num_encoder_layers=2, num_decoder_layers=2,
               d_ff=1024, dropout=0.0, norm_first=True, max_len=32)
BERT = dict(vocab_size=1000, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536,
            max_position_embeddings=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
ADAMW = dict(lr=1e-3, betas=(0.9, 0.99))
DECAY, BATCHES = 0.1, 16                                # so many batches come in turn: a step rarely sees one again


class Workload(NamedTuple):
    """A model and what it reads. Each batch is (inputs, targets), all arrays; targets are None where nothing is trained."""
    title: str
    family: type[nn.Module]
    config: object
    batches: list
    operations: int                                     # of the products in one step
    head: str | None = None
    seed: int = 0

    @property
    def is_trained(self):
        return self.batches[0][1] is not None

    def build(self):
        """The model, always with the same weights."""
        mt.manual_seed(self.seed)
        return self.family(self.config, self.head)


def gpt2(title, B, vocab_size=65, seed=0, **sizes):
    """A GPT-2 in training, without biases and dropout, on random tokens."""
    c = models.GPT2Config(vocab_size=vocab_size, bias=False, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, **sizes)
    ids = np.random.default_rng(seed).integers(vocab_size, size=(BATCHES, B, c.n_positions + 1))
    return Workload(title, models.GPT2, c, [((some[:, :-1],), some[:, 1:]) for some in ids],
                    limits.training(limits.gpt2(c, B, c.n_positions)), "lm", seed)


def vit(B=64):
    """A ViT in training, as in demos/vit_digits.py but with more and smaller patches, on noise."""
    c, rng = models.ViTConfig(**VIT), np.random.default_rng(0)
    images = rng.random((BATCHES, B, c.num_channels, c.image_size, c.image_size), dtype=np.float32)
    digits = rng.integers(c.num_labels, size=(BATCHES, B))
    return Workload("ViT, digits of 8 x 8", models.ViT, c, [((some,), right) for some, right in zip(images, digits)],
                    limits.training(limits.vit(c, B), unneeded=limits.patches(c, B)), "image")


def seq2seq(B=32, S=32, T=32):
    """An encoder-decoder in training, on random tokens."""
    c, rng = models.Seq2SeqConfig(**SEQ2SEQ), np.random.default_rng(0)
    read, written = (rng.integers(c.src_vocab_size, size=(BATCHES, B, n)) for n in (S, T + 1))
    return Workload("encoder-decoder, 2 + 2 layers, 256 wide", models.Seq2Seq, c,
                    [((source, some[:, :-1]), some[:, 1:]) for source, some in zip(read, written)],
                    limits.training(limits.seq2seq(c, B, S, T)), "lm")


def bert(B=8, T=128):
    """A BERT that reads random tokens."""
    c = models.BertConfig(**BERT)
    ids = np.random.default_rng(0).integers(c.vocab_size, size=(BATCHES, B, T))
    return Workload("BERT, 6 layers, 384 wide, inference", models.BERT, c, [((some,), None) for some in ids],
                    limits.bert(c, B, T))


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "small": lambda: gpt2("GPT-2 small, training step", 12, **SMALL),
    "medium": lambda: gpt2("GPT-2 medium, training step", 8, **MEDIUM),
    "vit": vit, "seq2seq": seq2seq, "bert": bert}


def loss_of(model, batch):
    """The loss on one batch."""
    inputs, targets = batch
    return ops.cross_entropy(model(*there(inputs)), targets)


def there(inputs):
    """Arrays on the default device, where the model is: it would move ids by itself, not images."""
    return [backend.to_device(x, backend.default_device()) for x in inputs]


def training_step(model, batches, half=False):
    """A function that takes one training step, on the next batch each time, and returns the loss. half: in float16."""
    scaler = optim.GradScaler() if half else None
    if half:
        model.to(dtype=np.float16)                      # the optimiser keeps the weights in float32
    optimiser = optim.AdamW(optim.decay_groups(model, DECAY), **ADAMW)
    batches = itertools.cycle(halved(batches) if half else batches)

    def step():
        loss = loss_of(model, next(batches))
        optimiser.zero_grad()
        (scaler.scale(loss) if half else loss).backward()
        if half:
            scaler.unscale_(optimiser)
        optim.clip_grad_norm(model.parameters(), 1.0)
        if half:
            scaler.step(optimiser)
            scaler.update()
        else:
            optimiser.step()
        return loss.item()
    return step


def halved(batches):
    """Batches whose floats are float16."""
    return [(tuple(x.astype(np.float16) if x.dtype == np.float32 else x for x in inputs), targets)
            for inputs, targets in batches]


def inference(model, batches, half=False):
    """A function that reads the next batch, without a tape; the result as an array. half: in float16."""
    model.eval()
    if half:
        model.to(dtype=np.float16)
    batches = itertools.cycle(halved(batches) if half else batches)

    @mt.no_grad()
    def read():
        inputs, _ = next(batches)
        return model(*there(inputs)).numpy()
    return read


def step_of(work, model, half=False):
    """What is measured of a workload: its model's training step, or reading."""
    return (training_step if work.is_trained else inference)(model, work.batches, half)
