"""Triton kernels, imported when a CUDA tensor first needs one: the library works without Triton."""
