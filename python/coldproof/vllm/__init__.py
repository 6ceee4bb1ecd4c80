"""The adapter for vLLM: ``python -m coldproof.vllm`` speaks the engine protocol.

Importing this package imports neither torch nor vLLM.
"""
