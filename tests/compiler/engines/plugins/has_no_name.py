"""An engine without a name."""


class Engine:
    def check(self, graph, device): ...
    def compile(self, graph, device, knobs): ...
    def load(self, payload, device): ...


ENGINE = Engine()
