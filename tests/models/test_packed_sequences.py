"""Packed sequences: what needs the lengths runs as it is, one break for each such call; all else is compiled."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import dynajit


class Tagger(nn.Module):
    """Embeds, packs, runs a network over it, pads, classifies."""

    def __init__(self, network: type[nn.RNNBase], is_sorted: bool, **kwargs: Any) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.network = network(4, 5, batch_first=True, **kwargs)
        self.out = nn.Linear(5 * (1 + self.network.bidirectional), 2)
        self.is_sorted = is_sorted

    def forward(self, x: Tensor, lengths: Any) -> tuple[Tensor, Tensor, Any]:
        packed = pack_padded_sequence(self.embed(x).relu(), lengths, batch_first=True, enforce_sorted=self.is_sorted)
        states, last = self.network(packed)
        padded, counts = pad_packed_sequence(states, batch_first=True)
        return self.out(padded).tanh() * 2, counts, last


@pytest.mark.parametrize("network", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_networks_over_packed_sequences(network: type[nn.RNNBase], is_sorted: bool, backend: str) -> None:
    torch.manual_seed(0)
    model = Tagger(network, is_sorted, num_layers=2, bidirectional=is_sorted)
    run = dynajit.compile(model, backend=backend)
    batches = [[4, 2, 1], [4, 4, 3], [5, 1], [3]] if is_sorted else [[1, 4, 2], [3, 4, 4], [1, 5], [3]]
    for number, lengths in enumerate(batches):
        x = torch.randn(len(lengths), max(lengths), 3)
        given = torch.tensor(lengths) if number % 2 else lengths
        results = []
        for fn in (model, run):
            model.zero_grad()
            found = fn(x, given)
            found[0].square().sum().backward()
            results.append((found, [weight.grad.clone() for weight in model.parameters()]))
        torch.testing.assert_close(results[1], results[0])


def test_one_break_for_each_call_that_needs_the_lengths() -> None:
    model = Tagger(nn.LSTM, is_sorted=False)
    report = dynajit.explain(model, backend="eager")(torch.randn(3, 4, 3), torch.tensor([1, 4, 2]))
    kinds = [found.kind for found in report.break_reasons]
    assert kinds == ["dynamic-output-shape", "data-dependent", "data-dependent"]
    assert report.graph_count == 3  # before the sequence is packed, the order to put back, and after it is padded


def test_given_states_hooks_and_errors() -> None:
    model = nn.GRU(2, 3)
    seen = []
    model.register_forward_hook(lambda module, args, out: seen.append(out[0].data.shape))

    def program(first: Tensor, second: Tensor, state: Tensor) -> Any:
        packed = pack_sequence([first * 2, second])
        packed = PackedSequence(packed.data + 1, packed.batch_sizes)
        states, last = model(packed, state)
        return states.data * 2, states.batch_sizes, last + 1

    run = dynajit.compile(program, backend="eager")
    for rows in (3, 4):
        args = torch.randn(rows, 2), torch.randn(2, 2), torch.randn(1, 2, 3)
        torch.testing.assert_close(run(*args), program(*args))
    assert len(seen) == 4 and seen[0] == seen[1]
    wrong = torch.randn(3, 2), torch.randn(2, 2), torch.randn(1, 1, 3)
    texts = []
    for fn in (program, run):
        with pytest.raises(RuntimeError) as caught:
            fn(*wrong)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_a_subclass_that_extends_the_forward() -> None:
    class Scaled(nn.GRU):
        def forward(self, input: Any, hx: Any = None) -> Any:
            out, last = super().forward(input, hx)
            return out, last * 2

    model = Scaled(2, 3)
    run = dynajit.compile(lambda packed: model(packed)[1] + 1, backend="eager")
    for rows in (3, 5):
        packed = pack_sequence([torch.randn(rows, 2), torch.randn(2, 2)])
        torch.testing.assert_close(run(packed), model(packed)[1] + 1)
    plain = dynajit.compile(lambda x: model(x)[1] + 1, backend="eager", fullgraph=True)
    x = torch.randn(4, 2, 2)
    torch.testing.assert_close(plain(x), model(x)[1] + 1)
