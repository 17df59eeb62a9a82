"""Text: chat templates, tokenisation, incremental detokenisation, stop strings.

The only importer of ``tokenizers`` and ``jinja2``.
"""
