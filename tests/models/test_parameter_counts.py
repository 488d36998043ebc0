"""The published numbers of parameters, twice: counted from the modules, and by closed form.

The modules are built inside nn.init.hollow(), where a parameter takes no memory: 8 billion are no more than 8 thousand.
"""
import tracemalloc

import numpy as np
import pytest

from minitx import models, nn


def linear(inside, outside, bias=True):
    return inside * outside + bias * outside


def attention(C, bias=True):
    return 4 * linear(C, C, bias)


def block(C, F, attentions=1):
    """Attention, a feed-forward net and the layer norms that belong to them, all with biases."""
    return attentions * attention(C) + linear(C, F) + linear(F, C) + (attentions + 1) * 2 * C


def gpt2(C, layers, V=50257, positions=1024):
    return (V + positions) * C + layers * block(C, 4 * C) + 2 * C


def bert(C, layers, F, V, positions, types=2, pooler=True):
    return (V + positions + types) * C + 2 * C + layers * block(C, F) + pooler * linear(C, C)


def vit(C, layers, F, patches=14 * 14, patch=16, labels=1000):
    return linear(3 * patch ** 2, C) + (1 + patches + 1) * C + layers * block(C, F) + 2 * C + linear(C, labels)


def t5(C, layers, F, H, K=64, V=32128, buckets=32):
    attention, net, norm = 4 * C * H * K, 2 * C * F, C                      # no biases anywhere
    encoder = layers * (attention + net + 2 * norm) + norm
    decoder = layers * (2 * attention + net + 3 * norm) + norm
    return V * C + encoder + decoder + 2 * buckets * H


def bart(C, layers, F, V=50265, positions=1024):
    return V * C + 2 * (positions + 2) * C + 2 * 2 * C + layers * (block(C, F) + block(C, F, attentions=2))


def llama(C, layers, F, V, H, kv_heads):
    block = 2 * C * C + 2 * C * (C // H * kv_heads) + 3 * C * F + 2 * C
    return 2 * V * C + layers * block + C                                   # the head is not tied


PUBLISHED = {
    "GPT-2": (124_439_808, gpt2(768, 12), lambda: models.GPT2()),
    "GPT-2 medium": (354_823_168, gpt2(1024, 24), lambda: models.GPT2(
        models.GPT2Config(n_embd=1024, n_layer=24, n_head=16))),
    "GPT-2 large": (774_030_080, gpt2(1280, 36), lambda: models.GPT2(
        models.GPT2Config(n_embd=1280, n_layer=36, n_head=20))),
    "GPT-2 xl": (1_557_611_200, gpt2(1600, 48), lambda: models.GPT2(
        models.GPT2Config(n_embd=1600, n_layer=48, n_head=25))),
    "BERT base": (109_482_240, bert(768, 12, 3072, 30522, 512), lambda: models.BERT(head=None)),
    "BERT large": (335_141_888, bert(1024, 24, 4096, 30522, 512), lambda: models.BERT(
        models.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096), None)),
    "RoBERTa base": (124_645_632, bert(768, 12, 3072, 50265, 514, types=1), lambda: models.BERT(
        models.RobertaConfig(max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5), None)),
    "DistilBERT": (66_362_880, bert(768, 6, 3072, 30522, 512, types=0, pooler=False), lambda: models.BERT(
        models.DistilBertConfig(), None)),
    "ViT B/16": (86_567_656, vit(768, 12, 3072), lambda: models.ViT(models.ViTConfig(num_labels=1000))),
    "ViT L/16": (304_326_632, vit(1024, 24, 4096), lambda: models.ViT(models.ViTConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=1000))),
    "T5 small": (60_506_624, t5(512, 6, 2048, 8), lambda: models.T5()),
    "T5 base": (222_903_552, t5(768, 12, 3072, 12), lambda: models.T5(
        models.T5Config(d_model=768, num_layers=12, d_ff=3072, num_heads=12))),
    "BART base": (139_420_416, bart(768, 6, 3072), lambda: models.BART(models.BartConfig(
        d_model=768, encoder_layers=6, encoder_attention_heads=12, encoder_ffn_dim=3072,
        decoder_layers=6, decoder_attention_heads=12, decoder_ffn_dim=3072))),
    "LLaMA 7B": (6_738_415_616, llama(4096, 32, 11008, 32000, 32, 32), lambda: models.Llama()),
    "Llama-3 8B": (8_030_261_248, llama(4096, 32, 14336, 128256, 32, 8), lambda: models.Llama(models.LlamaConfig(
        vocab_size=128256, intermediate_size=14336, num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=500000.0,
        max_position_embeddings=8192))),
    "nn.Transformer": (44_140_544, 6 * (block(512, 2048) + block(512, 2048, attentions=2)) + 2 * 2 * 512,
                       lambda: nn.Transformer()),
    "encoder layer": (3_152_384, block(512, 2048), lambda: nn.EncoderBlock(512, 8, 2048)),
    "decoder layer": (4_204_032, block(512, 2048, attentions=2), lambda: nn.DecoderBlock(512, 8, 2048)),
    "the tutorial's attention": (16_640, attention(64), lambda: nn.MultiHeadAttention(64, 8)),
    "the tutorial's block": (49_984, block(64, 256), lambda: nn.EncoderBlock(64, 8, 256)),
    "six of the tutorial's blocks": (299_904, 6 * block(64, 256), lambda: nn.ModuleList(
        nn.EncoderBlock(64, 8, 256) for _ in range(6))),
}


def count(module):
    return sum(parameter.size for parameter in module.parameters())


@pytest.mark.parametrize("published, closed_form, build", PUBLISHED.values(), ids=PUBLISHED)
def test_the_count_is_the_published_one(published, closed_form, build):
    assert closed_form == published
    with nn.init.hollow():
        model = build()
    assert count(model) == published
    assert f"{published:,} parameters" in repr(model).splitlines()[0]


def test_eight_billion_parameters_take_no_memory():
    tracemalloc.start()
    try:
        with nn.init.hollow():
            model = PUBLISHED["Llama-3 8B"][2]()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8e6 and model.embed_tokens.weight.data.nbytes > 2e9


TINY = {
    "GPT-2": lambda: models.GPT2(models.GPT2Config(65, 8, 16, 2, 4)),
    "LLaMA": lambda: models.Llama(models.LlamaConfig(65, 16, 24, 2, 4, 2)),
    "BERT": lambda: models.BERT(models.BertConfig(65, 16, 2, 4, 32, max_position_embeddings=8)),
    "T5": lambda: models.T5(models.T5Config(65, 16, 4, 32, 2, num_heads=4)),
    "BART": lambda: models.BART(models.BartConfig(65, 8, 2, 32, 4, 2, 32, 4, d_model=16)),
    "ViT": lambda: models.ViT(models.ViTConfig(16, 2, 4, 32, image_size=8, patch_size=4)),
    "Seq2Seq": lambda: models.Seq2Seq(models.Seq2SeqConfig(65, 65, 16, 4, 2, 2, 32)),
}


@pytest.mark.parametrize("build", TINY.values(), ids=TINY)
def test_a_hollow_model_has_the_names_shapes_and_ties_of_the_real_one(build):
    real = build()
    with nn.init.hollow():
        hollow = build()
    assert ([(name, p.shape, p.dtype) for name, p in hollow.named_parameters()]
            == [(name, p.shape, p.dtype) for name, p in real.named_parameters()])
    assert list(hollow.state_dict()) == list(real.state_dict())
    with pytest.raises(ValueError, match="read-only"):
        hollow.load_state_dict(real.state_dict())
    for ours, theirs in zip(hollow.parameters(), real.parameters()):
        ours.data = theirs.data                                             # what the model was made for
    for name, array in hollow.state_dict().items():
        np.testing.assert_array_equal(array, real.state_dict()[name], err_msg=name)
