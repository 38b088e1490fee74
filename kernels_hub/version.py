"""The version of the library, for everything below the package itself."""

__version__ = "0.1.0"
