"""Whole models, built of nn, named and configured as their papers' authors did."""
from minitx.models.gpt2 import GPT2, GPT2Config

__all__ = ["GPT2", "GPT2Config"]
