"""Generate text: one engine interface, and its implementations on transformers, vLLM and SGLang."""
