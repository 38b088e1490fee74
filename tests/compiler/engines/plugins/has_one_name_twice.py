"""Two engines of one name."""


class Engine:
    name = "twice"

    def check(self, graph, device): ...
    def compile(self, graph, device, knobs): ...
    def load(self, payload, device): ...


engines = [Engine(), Engine()]
