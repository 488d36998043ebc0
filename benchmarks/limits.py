"""What the machine can do, and what a model asks of it: the share of the limit stands beside each figure.

Operations are those of the matrix products, 2 M N K for (M, K) times (K, N). A training step takes three products for each
one of the forward: the output, the gradient of the input and that of the weight. In causal attention only what lies on
and below the diagonal counts, T (T + 1) / 2 scores of a head: that is what must be computed, whatever a library does.
"""
import concurrent.futures

import numpy as np
from pairs import seconds

MEGABYTES = 100


def peak(n=2048, tries=5):
    """Operations a second of a large product in float32, the best of several tries."""
    rng = np.random.default_rng(0)
    a, b, out = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(3))
    return 2 * n ** 3 / min(seconds(lambda: np.matmul(a, b, out=out)) for _ in range(tries))


def bandwidth(threads=1, tries=7):
    """Bytes read and written a second by copies between large arrays, a part for each thread; the best of several."""
    source, target = (np.ones(MEGABYTES * 10 ** 6 // 4, np.float32) for _ in range(2))
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads)))
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        def copy():
            list(pool.map(np.copyto, *zip(*parts)))
        return 2 * source.nbytes / min(seconds(copy) for _ in range(tries))


def linear(rows, n_in, n_out):
    """rows vectors of n_in through one weight matrix."""
    return 2 * rows * n_in * n_out


def attention(scores, width):
    """Queries times keys, and weights times values: so many scores a head, in heads that are `width` wide together."""
    return 2 * 2 * scores * width


def self_attention(rows, scores, C):
    """Queries, keys and values of the rows, attention between them, the output layer."""
    return linear(rows, C, 4 * C) + attention(scores, C)


def feed_forward(rows, C, F):
    return linear(rows, C, F) + linear(rows, F, C)


def causal(T):
    """Scores of a head in which no position sees a later one."""
    return T * (T + 1) // 2


def gpt2(config, B, T):
    """Operations of the forward."""
    C, rows = config.n_embd, B * T
    layer = self_attention(rows, B * causal(T), C) + feed_forward(rows, C, 4 * C)
    return config.n_layer * layer + linear(rows, C, config.vocab_size)


def patches(config, B):
    """The product that makes vectors of the patches of B images."""
    n = (config.image_size // config.patch_size) ** 2
    return linear(B * n, config.num_channels * config.patch_size ** 2, config.hidden_size)


def vit(config, B):
    """Operations of the forward: the patches, and one token before them that alone is classified."""
    C, T = config.hidden_size, 1 + (config.image_size // config.patch_size) ** 2
    layer = self_attention(B * T, B * T * T, C) + feed_forward(B * T, C, config.intermediate_size)
    return patches(config, B) + config.num_hidden_layers * layer + linear(B, C, config.num_labels)


def bert(config, B, T):
    """Operations of the forward, without a head."""
    C, rows = config.hidden_size, B * T
    layer = self_attention(rows, B * T * T, C) + feed_forward(rows, C, config.intermediate_size)
    return config.num_hidden_layers * layer


def seq2seq(config, B, S, T):
    """Operations of the forward, reading S and writing T tokens."""
    C, F, reading, writing = config.d_model, config.d_ff, B * S, B * T
    encoder = self_attention(reading, B * S * S, C) + feed_forward(reading, C, F)
    crossing = linear(writing, C, 2 * C) + linear(reading, C, 2 * C) + attention(B * T * S, C)
    decoder = self_attention(writing, B * causal(T), C) + crossing + feed_forward(writing, C, F)
    return (config.num_encoder_layers * encoder + config.num_decoder_layers * decoder
            + linear(writing, C, config.tgt_vocab_size))


def training(forward, unneeded=0):
    """Operations of a training step; `unneeded` are those of first layers, whose input wants no gradient."""
    return 3 * forward - unneeded
