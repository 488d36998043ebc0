"""From PyTorch to minitx."""
import numpy as np

from minitx import nn
from minitx.interop.conversion import PARTS, Conversion, array_of
from minitx.nn.vision import PatchProjection


class FromTorch(Conversion):
    """The rules for PyTorch's modules. Each builds ours; a block starts small, as its parts are then replaced."""
    name = "from_torch"

    def __init__(self, torch):
        super().__init__(torch)
        t, F = torch.nn, torch.nn.functional
        self.kind = t.Module
        self.rules = {
            t.Linear: lambda m: nn.Linear(m.in_features, m.out_features, bias=False),
            t.Embedding: self.embedding,
            t.LayerNorm: lambda m: nn.LayerNorm(self.width(m), m.eps, bias=False),
            t.RMSNorm: self.rms_norm,
            t.Conv2d: self.patches,
            t.Dropout: lambda m: nn.Dropout(m.p),
            t.GELU: lambda m: nn.GELU(m.approximate),
            t.ReLU: lambda m: nn.ReLU(),
            t.SiLU: lambda m: nn.SiLU(),
            t.Tanh: lambda m: nn.Tanh(),
            t.Sequential: self.sequential,
            t.ModuleList: lambda m: nn.ModuleList(map(self.convert, m)),
            t.MultiheadAttention: self.attention,
            t.TransformerEncoderLayer: lambda m: self.block(nn.EncoderBlock, m, [m.dropout1, m.dropout2]),
            t.TransformerDecoderLayer: lambda m: self.block(nn.DecoderBlock, m, [m.dropout1, m.dropout2, m.dropout3]),
            t.TransformerEncoder: lambda m: self.stack(nn.Encoder, t.TransformerEncoderLayer, m),
            t.TransformerDecoder: lambda m: self.stack(nn.Decoder, t.TransformerDecoderLayer, m),
            t.Transformer: self.transformer,
        }
        self.activations = [(F.relu, nn.ReLU), (torch.relu, nn.ReLU), (F.gelu, nn.GELU), (F.silu, nn.SiLU),
                            (F.tanh, nn.Tanh), (torch.tanh, nn.Tanh)]

    def whole(self, module):
        with nn.init.undrawn():
            made = super().whole(module)
        if len({m.batch_first for m in module.modules() if hasattr(m, "batch_first")}) > 1:
            self.refuse(module, "batch_first is True in one part and False in another")
        return made

    def parameter(self, p, part=0, parts=1):
        """Our Parameter for p, or for one of the equal parts that are packed in it."""
        if p is None:
            return None
        self.place(p, parts)
        if (id(p), part) not in self.made:
            self.made[id(p), part] = nn.Parameter(np.split(array_of(p), parts)[part], p.requires_grad)
        return self.made[id(p), part]

    def embedding(self, m):
        self.require(m, max_norm=None, scale_grad_by_freq=False, sparse=False)
        return nn.Embedding(m.num_embeddings, m.embedding_dim, m.padding_idx)

    def width(self, m):
        """The one axis of a norm."""
        if len(m.normalized_shape) != 1:
            self.refuse(m, f"normalized_shape={m.normalized_shape} cannot be kept, it must be one axis")
        return m.normalized_shape[0]

    def rms_norm(self, m):
        eps = m.eps
        if eps is None:
            if m.weight is None:
                self.refuse(m, "eps=None cannot be kept with elementwise_affine=False, which leaves its dtype open")
            eps = np.finfo(np.float64 if m.weight.dtype == self.torch.float64 else np.float32).eps
        return nn.RMSNorm(self.width(m), float(eps))

    def patches(self, m):
        self.require(m, stride=m.kernel_size, dilation=(1, 1), groups=1, padding_mode="zeros")
        if m.padding != "valid":
            self.require(m, padding=(0, 0))
        return PatchProjection(m.in_channels, m.out_channels, m.kernel_size)

    def sequential(self, m):
        if any(type(inner) is self.torch.nn.Conv2d for inner in m):
            self.refuse(m, "what a Conv2d hands on has another layout in minitx; convert the modules one by one")
        return nn.Sequential(*map(self.convert, m))

    def attention(self, m):
        if m.bias_k is not None or m.bias_v is not None:
            self.refuse(m, "add_bias_kv=True cannot be kept")
        self.require(m, add_zero_attn=False)
        made = nn.MultiHeadAttention(m.embed_dim, m.num_heads, m.dropout, bias=False, kdim=m.kdim, vdim=m.vdim)
        separate = m.q_proj_weight, m.k_proj_weight, m.v_proj_weight
        for i, w in enumerate((made.w_q, made.w_k, made.w_v)):
            packed = m.in_proj_weight is not None
            w.weight = self.parameter(m.in_proj_weight, i, 3) if packed else self.parameter(separate[i])
            w.bias = self.parameter(m.in_proj_bias, i, 3)
        self.fill(made.w_o, m.out_proj)
        return made.train(m.training)

    def activation(self, layer):
        if isinstance(layer.activation, self.kind):
            return self.convert(layer.activation)
        for function, module in self.activations:
            if layer.activation is function:
                return module().train(layer.training)
        self.refuse(layer, f"activation={layer.activation!r} is not known; there are relu, gelu, silu and tanh of "
                           "torch.nn.functional, and the modules GELU, ReLU, SiLU and Tanh")

    def block(self, kind, m, dropouts):
        if len({(type(d), d.p, d.training) for d in dropouts}) > 1:
            rates = ", ".join(f"dropout{i}={d.p}" for i, d in enumerate(dropouts, start=1))
            self.refuse(m, f"{rates} cannot be kept, they must be the same")
        made = kind(1, 1, 1, norm_first=m.norm_first).train(m.training)
        for ours, theirs in PARTS.items():
            if hasattr(made, ours):
                part = getattr(m, theirs)
                if theirs.endswith("attn"):
                    self.only(self.torch.nn.MultiheadAttention, part, "the attention of a layer")
                setattr(made, ours, self.convert(part))
        up, dropout, down = map(self.convert, (m.linear1, m.dropout, m.linear2))
        made.ff.net = nn.Sequential(up, self.activation(m), dropout, down)
        made.ff.net.training = m.training
        made.dropout = [self.convert(dropout) for dropout in dropouts][0]
        return made

    def stack(self, kind, block, m):
        for layer in m.layers:
            self.only(block, layer, f"a layer of {type(m).__name__}")
        made = kind(0, 1, 1, 1, final_norm=False)
        made.layers, made.norm = self.convert(m.layers), None if m.norm is None else self.convert(m.norm)
        return made

    def transformer(self, m):
        self.only(self.torch.nn.TransformerEncoder, m.encoder, "custom_encoder")
        self.only(self.torch.nn.TransformerDecoder, m.decoder, "custom_decoder")
        made = nn.Transformer(1, 1, 0, 0, 1)
        made.encoder, made.decoder = self.convert(m.encoder), self.convert(m.decoder)
        return made
