"""Nothing is packed on this backend; see cpu/weights.py."""
