"""Layer repositories on disk: metadata, variants, versions, loading, building and cards; no network."""
