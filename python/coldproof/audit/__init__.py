"""Reads an engine's Python sources for what post-load processing may leave behind.

What it lists are candidates: reading a source shows neither that a line runs nor that a graph sees
the tensor. It imports nothing of the engine.
"""

from coldproof.audit.candidates import Candidate, Kind, Report
from coldproof.audit.reach import audit

__all__ = ["Candidate", "Kind", "Report", "audit"]
