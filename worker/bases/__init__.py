"""Programs that `mens base add` runs: a base out of a GGUF file, and a base's tokenizer beside transformers'.

Start with `gguf_base.py`. Imports the child process's protocol and shared packages; never torch where a tokenizer is compared.
"""
