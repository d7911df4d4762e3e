"""Stacks as a tree for flame graphs, bounded: the largest nodes are kept, invisibly small ones are folded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

STACKS_MAX = 20_000  # exact ones; more nodes cannot be drawn
NODES_MAX = 8_000
FOLDED = -1  # the label of a node that stands for smaller siblings

# Outstanding bytes and blocks; of a comparison also those before.
Weights = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightedStack:
    """labels: numbers of names, from the root of the tree on."""

    labels: Sequence[int]
    weights: Weights


@dataclass(frozen=True, slots=True)
class FlatTree:
    """Nodes in preorder; node 0 is the root, whose label is FOLDED. weights: of a node with all below it, a column each."""

    parent: list[int]
    label: list[int]
    weights: tuple[list[int], ...]
    folded: list[int]  # how many siblings, or stacks, the node stands for; 0 = itself only


@dataclass(slots=True)
class _Node:
    weights: list[int]
    children: dict[int, _Node] = field(default_factory=dict)
    folded: int = 0

    def add(self, weights: Weights) -> None:
        self.weights = [one + more for one, more in zip(self.weights, weights, strict=True)]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Stacks that are in the sums only: how many, and what they weigh together."""

    count: int
    weights: Weights


def flat_tree(
    stacks: Iterable[WeightedStack],
    n_weights: int,
    nodes_max: int = NODES_MAX,
    left_out: LeftOut | None = None,
) -> FlatTree:
    """Sums stay exact despite folding: each node's weights are those of all stacks through it."""
    ranked = sorted(stacks, key=lambda stack: -max(stack.weights, default=0))
    root = _Node([0] * n_weights)
    for stack in ranked[:STACKS_MAX]:
        _add(root, stack)
    rest = [stack.weights for stack in ranked[STACKS_MAX:]]
    count = len(rest) + (left_out.count if left_out else 0)
    if count:
        rest += [left_out.weights] if left_out else []
        folded = _Node([sum(column) for column in zip(*rest, strict=True)], folded=count)
        root.add(tuple(folded.weights))
        root.children[FOLDED] = folded
    _fold(root, nodes_max)
    return _flat(root, n_weights)


def _add(root: _Node, stack: WeightedStack) -> None:
    node = root
    node.add(stack.weights)
    for label in stack.labels:
        node = node.children.setdefault(label, _Node([0] * len(stack.weights)))
        node.add(stack.weights)


def _fold(root: _Node, nodes_max: int) -> None:
    """Keeps the nodes_max largest nodes, by their share of any of the weights."""
    wholes = [max(1, weight) for weight in root.weights]

    def share(node: _Node) -> float:
        return max(weight / whole for weight, whole in zip(node.weights, wholes, strict=True))

    shares = sorted((share(node) for node in _nodes(root)), reverse=True)
    if len(shares) <= nodes_max:
        return
    least = shares[nodes_max]
    for node in _nodes(root):
        small = [label for label, child in node.children.items() if share(child) <= least]
        if small:
            removed = [node.children.pop(label) for label in {*small, FOLDED} & node.children.keys()]
            weights = [sum(child.weights[i] for child in removed) for i in range(len(wholes))]
            node.children[FOLDED] = _Node(weights, folded=sum(max(1, child.folded) for child in removed))


def _nodes(root: _Node) -> Iterable[_Node]:
    """Yields parents before children; skips children that the caller removes while it handles the parent."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children.values()


def _flat(root: _Node, n_weights: int) -> FlatTree:
    tree = FlatTree([], [], tuple([] for _ in range(n_weights)), [])
    waiting = [(root, -1, FOLDED)]
    while waiting:
        node, parent, label = waiting.pop()
        number = len(tree.parent)
        tree.parent.append(parent)
        tree.label.append(label)
        tree.folded.append(node.folded)
        for column, weight in zip(tree.weights, node.weights, strict=True):
            column.append(weight)
        children = sorted(node.children.items(), key=lambda item: (item[1].weights, item[0]))
        waiting += [(child, number, name) for name, child in children]
    return tree
