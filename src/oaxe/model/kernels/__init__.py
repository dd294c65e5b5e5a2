"""Triton kernels, imported when a CUDA tensor first needs one: the model works without Triton."""
