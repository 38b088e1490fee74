"""Stands for the table of a program, which takes this file's place in what is emitted."""

from __future__ import annotations

from .parts import Table

TABLE: Table
