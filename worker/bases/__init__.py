"""Programs that `mens base add` runs: convert a GGUF file into a base, and compare a base's tokenizer with
transformers'.

Start with `gguf_base.py`. Imports the child process's protocol and shared packages; the tokenizer comparison never
loads torch.
"""
