"""Benchmarks for a machine with a GPU; they are run by hand, as `python -m benchmarks.gpu.resnet`."""
