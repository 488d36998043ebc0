"""Whole models, built of nn, named and configured as their papers' authors did."""
from minitx.models.gpt2 import GPT2, GPT2Config
from minitx.models.seq2seq import Seq2Seq, Seq2SeqConfig

__all__ = ["GPT2", "GPT2Config", "Seq2Seq", "Seq2SeqConfig"]
