"""A name that no file or key could have."""


class Engine:
    name = "Fast Engine!"

    def check(self, graph, device): ...
    def compile(self, graph, device, knobs): ...
    def load(self, payload, device): ...


ENGINE = Engine()
