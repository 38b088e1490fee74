"""Search: graphs that compute the same and other loops for them, checked and measured; the extra `search`."""
