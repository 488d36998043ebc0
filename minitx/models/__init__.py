"""Whole models, built of nn, named and configured as their papers' authors did."""
from minitx.models.bart import BART, BartConfig
from minitx.models.bert import BERT, BertConfig, DistilBertConfig, RobertaConfig
from minitx.models.gpt2 import GPT2, GPT2Config
from minitx.models.llama import Llama, LlamaConfig
from minitx.models.pretrained import from_pretrained
from minitx.models.sentence import SentenceEncoder
from minitx.models.seq2seq import Seq2Seq, Seq2SeqConfig
from minitx.models.t5 import T5, T5Config
from minitx.models.vit import ViT, ViTConfig

__all__ = [
    "BART", "BartConfig", "BERT", "BertConfig", "DistilBertConfig", "GPT2", "GPT2Config", "Llama",
    "LlamaConfig", "RobertaConfig", "SentenceEncoder", "Seq2Seq", "Seq2SeqConfig", "T5", "T5Config", "ViT",
    "ViTConfig", "from_pretrained",
]
