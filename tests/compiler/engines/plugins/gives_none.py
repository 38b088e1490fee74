"""Forgets to return."""


def engines():
    pass
