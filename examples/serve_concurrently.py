"""Serve one compiled model to many at once, with nothing but torch and the standard library.

It shows that a compiled module may be called by any number of threads, the first calls among them; that requests of
different lengths share compiled code; and what putting waiting requests together in one batch brings.

    python examples/serve_concurrently.py
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

import dynajit


class Classifier(nn.Module):
    """Tokens (batch, length), int64, 0 where a text has ended, to probabilities (batch, classes)."""

    def __init__(self, width: int = 128, classes: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, width, padding_idx=0)
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU())
        self.head = nn.Linear(4 * width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        there = (tokens != 0).unsqueeze(-1)
        y = self.layers(self.embedding(tokens)) * there
        return self.head(y.sum(1) / there.sum(1)).softmax(-1)


class Batcher:
    """Puts requests that wait at the same moment together; each caller gets its row of the result."""

    def __init__(self, model: Callable[[Tensor], Tensor], largest: int = 16) -> None:
        self.model, self.largest = model, largest
        self.queue: asyncio.Queue[tuple[Tensor, asyncio.Future[Tensor]]] = asyncio.Queue()
        self.calls = 0

    async def ask(self, tokens: Tensor) -> Tensor:
        answer: asyncio.Future[Tensor] = asyncio.get_running_loop().create_future()
        await self.queue.put((tokens, answer))
        return await answer

    async def run(self) -> None:
        while True:
            waiting = [await self.queue.get()]
            while len(waiting) < self.largest and not self.queue.empty():
                waiting.append(self.queue.get_nowait())
            batch = nn.utils.rnn.pad_sequence([tokens for tokens, _ in waiting], batch_first=True)
            rows = await asyncio.to_thread(self.model, batch)  # the event loop stays free while the kernels run
            self.calls += 1
            for (_, answer), row in zip(waiting, rows):
                answer.set_result(row)


async def serve(batcher: Batcher, requests: list[Tensor]) -> list[Tensor]:
    worker = asyncio.create_task(batcher.run())
    answers = await asyncio.gather(*(batcher.ask(tokens) for tokens in requests))
    worker.cancel()
    return answers


def main(requests: int = 400, threads: int = 8) -> dict[str, float]:
    torch.manual_seed(0)
    model = Classifier().eval()
    compiled = dynajit.compile(model, fullgraph=True)
    texts = [torch.randint(1, 1000, (int(length),)) for length in torch.randint(5, 60, (requests,))]

    def answer(tokens: Tensor) -> Tensor:
        with torch.inference_mode():
            return compiled(tokens.unsqueeze(0))[0]

    def answer_many(batch: Tensor) -> Tensor:
        with torch.inference_mode():
            return compiled(batch)

    with torch.inference_mode():
        expected = [model(tokens.unsqueeze(0))[0] for tokens in texts]
    before = dynajit.counters()["unique_graphs"]
    with ThreadPoolExecutor(threads) as pool:
        by_threads = list(pool.map(answer, texts))  # nothing was compiled before this line
        begin = time.perf_counter()
        list(pool.map(answer, texts))
        seconds = time.perf_counter() - begin
    compiles = dynajit.counters()["unique_graphs"] - before

    asyncio.run(serve(Batcher(answer_many), texts))
    batcher = Batcher(answer_many)
    begin = time.perf_counter()
    in_batches = asyncio.run(serve(batcher, texts))
    batched = time.perf_counter() - begin

    apart = max((a - b).abs().max().item() for found in (by_threads, in_batches) for a, b in zip(found, expected))
    print(f"{threads} threads: {requests / seconds:.0f} answers a second, {compiles} graphs compiled for all lengths")
    print(f"in batches: {requests / batched:.0f} answers a second in {batcher.calls} calls")
    print(f"all answers are eager's, {apart:.1e} apart at most")
    return {"apart": apart, "compiles": compiles, "calls": batcher.calls}


if __name__ == "__main__":
    main()
