"""Opaque encoded bytes, as they travel: an engine's requests, outputs and states."""

from collections.abc import Sequence

Frames = Sequence[bytes | memoryview]
