"""Twins for NVIDIA GPUs: CUDA kernels for what CuPy would need many launches for."""
