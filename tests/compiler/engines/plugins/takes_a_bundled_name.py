"""Wants the place of a bundled engine."""


class Engine:
    name = "library"

    def check(self, graph, device): ...
    def compile(self, graph, device, knobs): ...
    def load(self, payload, device): ...


ENGINE = Engine()
