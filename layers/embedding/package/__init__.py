"""Token embeddings."""

from . import layers
from .operators import embedding

__all__ = ["embedding", "layers"]
