"""Quantized models: a small quantizer, and integer ops in place of quantize-dequantize pairs."""
