"""The commands of ``mens migrate openai``, which `mens` loads by the entry point `migrate` of the group `mens.commands`.

Start with `app.py`. Imports the steps, `cli.client` and below.
"""
