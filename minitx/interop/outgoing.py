"""From minitx to PyTorch."""
import numpy as np

from minitx import nn, ops
from minitx.interop.conversion import PARTS, Conversion
from minitx.nn.vision import PatchProjection


class ToTorch(Conversion):
    """The rules for our modules. Each builds PyTorch's; a block starts small, as its parts are then replaced."""
    name = "to_torch"
    kind = nn.Module

    def __init__(self, torch):
        super().__init__(torch)
        t = torch.nn
        self.rules = {
            nn.Linear: lambda m: t.Linear(m.in_features, m.out_features),
            nn.Embedding: lambda m: t.Embedding(m.n, m.dim, m.padding_idx),
            nn.LayerNorm: lambda m: t.LayerNorm(m.dim, m.eps, elementwise_affine=m.weight is not None),
            nn.RMSNorm: lambda m: t.RMSNorm(m.dim, m.eps, elementwise_affine=m.weight is not None),
            PatchProjection: self.patches,
            nn.PatchEmbed: lambda m: self.convert(m.proj),
            nn.Dropout: lambda m: t.Dropout(m.p),
            nn.GELU: lambda m: t.GELU(m.approximate),
            nn.ReLU: lambda m: t.ReLU(),
            nn.SiLU: lambda m: t.SiLU(),
            nn.Tanh: lambda m: t.Tanh(),
            nn.Sequential: self.sequential,
            nn.ModuleList: lambda m: t.ModuleList(map(self.convert, m)),
            nn.MultiHeadAttention: self.attention,
            nn.EncoderBlock: lambda m: self.block(t.TransformerEncoderLayer, m),
            nn.DecoderBlock: lambda m: self.block(t.TransformerDecoderLayer, m),
            nn.Encoder: lambda m: self.stack(nn.EncoderBlock, m, t.TransformerEncoder, enable_nested_tensor=False),
            nn.Decoder: lambda m: self.stack(nn.DecoderBlock, m, t.TransformerDecoder),
            nn.Transformer: self.transformer,
        }

    def whole(self, module):
        with self.torch.device("meta"):                             # no values, and no random numbers for them
            return super().whole(module)

    def parameter(self, *packed):
        """PyTorch's Parameter for ours, or for several of ours one below the other."""
        if all(p is None for p in packed):
            return None
        form = tuple(map(id, packed))
        if len({(p.dtype, p.requires_grad) for p in packed}) > 1 or len(set(form)) < len(form):
            raise ValueError("to_torch: the projections of queries, keys and values are packed in one: they must "
                             "have one dtype, be frozen together or not at all, and not be tied to each other")
        for p in packed:
            self.place(p, form)
        if form not in self.made:
            data = self.torch.from_numpy(np.concatenate([p.numpy() for p in packed]))
            self.made[form] = self.torch.nn.Parameter(data, packed[0].requires_grad)
        return self.made[form]

    def patches(self, m):
        d_model, in_ch, *patch = m.weight.shape
        return self.torch.nn.Conv2d(in_ch, d_model, patch, patch)

    def sequential(self, m):
        if any(type(inner) in (PatchProjection, nn.PatchEmbed) for inner in m):
            self.refuse(m, "what a Conv2d hands on has another layout in PyTorch; convert the modules one by one")
        return self.torch.nn.Sequential(*map(self.convert, m))

    def attention(self, m):
        projections = self.projections(m)
        self.require(m, num_kv_heads=m.num_heads, attend=ops.scaled_dot_product_attention, rotate=None)
        if m.num_heads * m.d_k != m.d_model:
            self.refuse(m, f"d_k={m.d_k} cannot be kept, {m.num_heads} heads must be {m.d_model} wide together")
        self.only(nn.Dropout, m.dropout, "its dropout")
        if m.dropout.training != m.training:
            self.refuse(m, f"training={m.training} with dropout.training={m.dropout.training} cannot be kept")
        self.uniform(m, projections)
        *qkv, w_o = projections
        kdim, vdim = m.w_k.in_features, m.w_v.in_features
        made = self.torch.nn.MultiheadAttention(m.d_model, m.num_heads, m.dropout.p, kdim=kdim, vdim=vdim,
                                                batch_first=True)
        if kdim == vdim == m.d_model:
            made.in_proj_weight = self.parameter(*(w.weight for w in qkv))
        else:
            made.q_proj_weight, made.k_proj_weight, made.v_proj_weight = (self.parameter(w.weight) for w in qkv)
        made.in_proj_bias = self.parameter(*(w.bias for w in qkv))
        self.fill(made.out_proj, w_o)
        return made.train(m.training)

    def projections(self, attention):
        self.only(nn.MultiHeadAttention, attention, "the attention of a block")
        parts = [attention.w_q, attention.w_k, attention.w_v, attention.w_o]
        for part in parts:
            self.only(nn.Linear, part, "a projection of MultiHeadAttention")
        return parts

    def uniform(self, m, parts):
        """PyTorch's fast path takes for granted that all have weights, and all or none of them a bias."""
        if any(part.weight is None for part in parts) or len({part.bias is None for part in parts}) > 1:
            self.refuse(m, "biases or weights in some of its parts only cannot be kept")

    def block(self, kind, m):
        self.only(nn.FeedForward, m.ff, "the net of a block")
        if m.ff.gate is not None:
            self.refuse(m, "a gated net cannot be kept")
        if [type(part) for part in m.ff.net][::2] != [nn.Linear, nn.Dropout] or len(m.ff.net) != 4:
            self.refuse(m, "its net must be Linear, activation, Dropout, Linear")
        up, activation, dropout, down = m.ff.net
        self.only(nn.Linear, down, "the last layer of a net")
        self.only(nn.Dropout, m.dropout, "the dropout of a block")
        parts = [up, down]
        made = kind(1, 1, 1, activation=self.convert(activation), norm_first=m.norm_first, batch_first=True)
        for ours, theirs in PARTS.items():
            if hasattr(m, ours):
                part = getattr(m, ours)
                if ours.startswith("norm"):
                    self.only(nn.LayerNorm, part, "the norm of a block")
                    parts.append(part)
                else:
                    parts += self.projections(part)
                setattr(made, theirs, self.convert(part))
        self.uniform(m, parts)
        made.linear1, made.dropout, made.linear2 = self.convert(up), self.convert(dropout), self.convert(down)
        for name in ("dropout1", "dropout2", "dropout3"):
            if hasattr(made, name):
                setattr(made, name, self.torch.nn.Dropout(m.dropout.p).train(m.dropout.training))
        if getattr(activation, "approximate", "none") != "none":
            made.activation_relu_or_gelu = 0                        # PyTorch's fast path would compute the exact GELU
        return made

    def stack(self, block, m, kind, **options):
        for layer in m.layers:
            self.only(block, layer, f"a layer of {type(m).__name__}")
        if not len(m.layers):
            self.refuse(m, "without layers there is none in PyTorch")
        layers = self.convert(m.layers)
        made = kind(layers[0], 0, None if m.norm is None else self.convert(m.norm), **options)
        made.layers, made.num_layers = layers, len(layers)
        return made

    def transformer(self, m):
        self.only(nn.Encoder, m.encoder, "the encoder of a Transformer")
        self.only(nn.Decoder, m.decoder, "the decoder of a Transformer")
        t = self.torch.nn
        encoder, decoder = self.convert(m.encoder), self.convert(m.decoder)
        attention = m.encoder.layers[0].attn
        made = t.Transformer(attention.d_model, attention.num_heads, custom_encoder=t.Identity(),
                             custom_decoder=t.Identity(), batch_first=True)
        made.encoder, made.decoder = encoder, decoder               # only now: the constructor draws initial values
        return made
