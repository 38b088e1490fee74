"""Minimum cut between the values that are available and those that are needed: the cheapest set to store.

Dinic's algorithm on a network of two nodes a value, with an edge between them of what it costs to keep the value.
Source: E. A. Dinic, Soviet Math. Doklady 11 (1970); of its use for saved activations: arXiv 2302.06117 (AOTAutograd).
"""

from __future__ import annotations

from collections import deque

ENDLESS = 1 << 60


class Network:
    """Nodes by number, edges with capacities."""

    def __init__(self, nodes: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(nodes)]
        """Of each node, places in `ends` and `left`; an edge and its reverse are 2n and 2n + 1."""
        self.ends: list[int] = []
        self.left: list[int] = []

    def edge(self, start: int, end: int, capacity: int) -> None:
        """An edge from one node to another."""
        for node, other, room in ((start, end, capacity), (end, start, 0)):
            self.edges[node].append(len(self.ends))
            self.ends.append(other)
            self.left.append(room)

    def fill(self, source: int, sink: int) -> int:
        """Send as much as there is room for; how much it was."""
        total = 0
        while (levels := self._levels(source))[sink] >= 0:
            places = [0] * len(self.edges)
            while sent := self._send(source, sink, levels, places):
                total += sent
        return total

    def reaching(self, sink: int) -> set[int]:
        """Nodes from which the sink can still be reached, once it is filled."""
        found, waiting = {sink}, [sink]
        while waiting:
            for place in self.edges[waiting.pop()]:
                before = self.ends[place]
                if self.left[place ^ 1] and before not in found:
                    found.add(before)
                    waiting.append(before)
        return found

    def _levels(self, source: int) -> list[int]:
        levels = [-1] * len(self.edges)
        levels[source] = 0
        waiting = deque([source])
        while waiting:
            node = waiting.popleft()
            for place in self.edges[node]:
                if self.left[place] and levels[self.ends[place]] < 0:
                    levels[self.ends[place]] = levels[node] + 1
                    waiting.append(self.ends[place])
        return levels

    def _send(self, source: int, sink: int, levels: list[int], places: list[int]) -> int:
        """One path from source to sink, by rising levels; what it took, 0 where there is none."""
        path: list[int] = []
        node = source
        while node != sink:
            if places[node] == len(self.edges[node]):
                if not path:
                    return 0
                levels[node] = -1
                node = self.ends[path.pop() ^ 1]
                continue
            place = self.edges[node][places[node]]
            if self.left[place] and levels[self.ends[place]] == levels[node] + 1:
                path.append(place)
                node = self.ends[place]
            else:
                places[node] += 1
        sent = min(self.left[number] for number in path)
        for place in path:
            self.left[place] -= sent
            self.left[place ^ 1] += sent
        return sent
