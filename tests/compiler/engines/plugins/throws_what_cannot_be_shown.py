"""Raises an error whose message raises another."""


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError


def engines():
    raise Unprintable
